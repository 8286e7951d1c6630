"""The two kinds of dataset: published files, fetched, verified and cached; and the digits of scikit-learn."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fromp.foundation.errors import DataError, install
from fromp.lab.data.arrays import Images, every_fifth
from fromp.lab.data.cache import Cached
from fromp.lab.data.find import CanonicalFile, holds, read_files
from fromp.lab.data.sources import Progress, Source

FOLDER_VARIABLE = "FROMP_DATA"


@dataclass(frozen=True)
class Status:
    """What is known of a dataset without reading it; `where` is empty unless it is present."""

    name: str
    present: bool
    where: str
    images: int
    bytes: int
    how: str


class Dataset(Protocol):
    """A named dataset that can be loaded, fetched beforehand, and asked whether it is here."""

    def load(self, folder: Path | None) -> Images:
        """The images, fetched if need be."""

    def fetch(self, folder: Path | None, progress: Progress) -> str:
        """Make sure that loading needs no network, and say where the data are."""

    def status(self) -> Status:
        """Whether it is here, where, how large, and how to get it."""


@dataclass(frozen=True)
class Published:
    """A dataset made of published files: `decode` turns their verified bytes into (train x, y, test x, y)."""

    name: str
    files: tuple[CanonicalFile, ...]
    archives: tuple[str, ...]
    sources: tuple[Source, ...]
    decode: Callable[[dict[str, bytes]], tuple[Tensor, Tensor, Tensor, Tensor]]
    train_shape: tuple[int, ...]
    test_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    others: frozenset[str] = frozenset()

    @property
    def cached(self) -> Cached:
        """Its place in the cache."""
        fingerprint = hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()
        return Cached(self.name, fingerprint, self.train_shape, self.test_shape, self.class_names)

    def load(self, folder: Path | None) -> Images:
        self.fetch(folder, lambda done, total: None)
        images = self.cached.read()
        if images is None:
            raise DataError(f"{self.cached.path} vanished while it was read; load {self.name} again.")
        return images

    def fetch(self, folder: Path | None, progress: Progress) -> str:
        named = named_folder(folder)
        if self.cached.read() is None:
            with self.cached.locked() as scratch:
                if self.cached.read() is None:
                    self.cached.write(self._images(named, scratch, progress), scratch)
        return str(self.cached.path)

    def status(self) -> Status:
        named = named_folder(None)
        where = ""
        if named is not None and holds(named, self.files, self.archives):
            where = str(named)
        if self.cached.read() is not None:
            where = str(self.cached.path)
        size = f"{self.sources[0].bytes / 1e6:.0f} MB"
        return Status(
            name=self.name,
            present=bool(where),
            where=where,
            images=self.train_shape[0] + self.test_shape[0],
            bytes=torch.Size(self.train_shape).numel() + torch.Size(self.test_shape).numel(),
            how=f"fromp data fetch {self.name} ({size}), or set {FOLDER_VARIABLE} to a folder with it",
        )

    def _images(self, named: Path | None, scratch: Path, progress: Progress) -> Images:
        """From the named folder, or else from the first source that gives the published bytes."""
        tried: list[str] = []
        if named is not None:
            raw = read_files(named, self.files, self.archives, scratch / "named", self.others)
            if raw is not None:
                return Images(*self.decode(raw), self.class_names)
            tried.append(f"{named}: none of its files is there")
        for number, source in enumerate(self.sources):
            here = scratch / f"source{number}"
            here.mkdir()
            try:
                source.get(here, progress)
                raw = read_files(here, self.files, self.archives, scratch / f"unpacked{number}", frozenset())
            except DataError as error:
                tried.append(f"{source}: {error}")
                continue
            if raw is not None:
                return Images(*self.decode(raw), self.class_names)
            tried.append(f"{source}: none of its files is there")
        published = " or ".join((", ".join(file.name for file in self.files), *self.archives))
        raise DataError(
            f"{self.name} could not be fetched. Tried {'; '.join(tried)}. Put its published files ({published}) "
            f"into a folder and name it, as an argument or in the environment variable {FOLDER_VARIABLE}."
        )


@dataclass(frozen=True)
class Digits:
    """The 1797 handwritten digits (1, 8, 8) of scikit-learn; the third of every five is for testing."""

    name: str = "digits"

    def load(self, folder: Path | None) -> Images:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise DataError(f"digits needs scikit-learn; {install('lab')}.") from error
        stored = load_digits()
        sixteenths = torch.from_numpy(stored.images).reshape(-1, 1, 8, 8)
        pixels = (sixteenths * 255 / 16).round().to(torch.uint8)
        labels = torch.from_numpy(stored.target).to(torch.int64)
        names = tuple(str(label) for label in range(10))
        test = every_fifth(labels, names)
        return Images(pixels[~test], labels[~test], pixels[test], labels[test], names)

    def fetch(self, folder: Path | None, progress: Progress) -> str:
        return "inside scikit-learn"

    def status(self) -> Status:
        return Status(self.name, True, "inside scikit-learn", 1797, 1797 * 8 * 8, "nothing to do")


def named_folder(folder: Path | None) -> Path | None:
    """The folder the user named, as an argument or in FROMP_DATA; an error if it is not there."""
    variable = os.environ.get(FOLDER_VARIABLE)
    named = folder if folder is not None else Path(variable) if variable else None
    if named is not None and not named.is_dir():
        origin = "folder" if folder is not None else FOLDER_VARIABLE
        raise DataError(f"{origin}={str(named)!r} is not a folder; name one that exists, or leave it out.")
    return named
