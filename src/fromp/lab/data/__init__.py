"""Datasets as tensors: `load` by name, `fetch` beforehand, `status` of all, and one's own data."""

import difflib
import os
from pathlib import Path

from fromp.foundation.errors import DataError
from fromp.lab.data.arrays import Arrays
from fromp.lab.data.catalogue import DATASETS
from fromp.lab.data.image_folder import from_folder
from fromp.lab.data.own import from_csv, from_dataset, from_npz
from fromp.lab.data.published import Dataset, Status
from fromp.lab.data.sources import Progress

__all__ = [
    "DATASETS",
    "Arrays",
    "Progress",
    "Status",
    "fetch",
    "from_csv",
    "from_dataset",
    "from_folder",
    "from_npz",
    "load",
    "status",
]


def load(name: str, folder: str | os.PathLike[str] | None = None) -> Arrays:
    """The dataset of that name, uint8 images (n, channels, height, width) and int64 labels (n,).

    It is looked for in the folder named here or in FROMP_DATA, then on the web, then in a package registry,
    and kept in the cache. Once there the cache answers first: every other place must have the same bytes.
    """
    return _find(name).load(_path(folder))


def fetch(
    name: str, folder: str | os.PathLike[str] | None = None, progress: Progress = lambda done, total: None
) -> str:
    """Where the dataset is, after putting it into the cache if need be; calls `progress(bytes done, of all)`."""
    return _find(name).fetch(_path(folder), progress)


def status() -> list[Status]:
    """For every dataset whether it is here, where, how many images and bytes, and how to get it."""
    return [dataset.status() for dataset in DATASETS.values()]


def _find(name: str) -> Dataset:
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1)
        advice = f"did you mean {near[0]!r}? " if near else ""
        raise DataError(f"unknown dataset {name!r}; {advice}known: {', '.join(DATASETS)}.")
    return DATASETS[name]


def _path(folder: str | os.PathLike[str] | None) -> Path | None:
    return None if folder is None else Path(folder).expanduser()
