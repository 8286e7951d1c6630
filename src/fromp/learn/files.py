"""A month's file, whatever its format, as a table; and the digest by which it is known again."""

import hashlib
import os
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fromp.foundation.errors import DataError
from fromp.foundation.storage import open_file
from fromp.reading import LARGEST
from fromp.reading.arrow import is_saved_dataset, read_parquet, read_saved_dataset
from fromp.reading.columns import Arrays, Column, Numbers, Table, Text, read_csv
from fromp.reading.images import class_folders, read_pixels
from fromp.reading.npz import npz_errors, read_arrays

CSV, PARQUET, NPZ = (".csv", ".tsv", ".txt"), (".parquet", ".pq"), ".npz"
IMAGE, CLASS = "image", "class"  # the columns of a folder of images
BLOCK = 2**20


def read_table(path: str | os.PathLike[str], encoding: str = "utf-8-sig", largest: int = LARGEST) -> Table:
    """CSV, Parquet, .npz, a folder of class folders of images, or a dataset that `datasets` saved, by what it is."""
    file = Path(path)
    if file.is_dir():
        return read_saved_dataset(file, largest) if is_saved_dataset(file) else _images(file, largest)
    ending = file.suffix.lower()
    if not file.exists():
        raise DataError(f"{file} is not there; name the file or folder of a month.")
    if ending not in (*CSV, *PARQUET, NPZ):
        raise DataError(f"{file} ends in '{ending}'; use {', '.join((*CSV, *PARQUET, NPZ))} or a folder.")
    if (size := file.stat().st_size) > largest:
        raise DataError(f"{file} has {size} bytes, the limit is {largest}; divide it into smaller months.")
    if ending in PARQUET:
        return read_parquet(file, largest)
    return _npz(file, largest) if ending == NPZ else read_csv(file, encoding)


def digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, or of the names and contents of everything in a folder."""
    found, root = hashlib.sha256(), Path(path)
    for file in sorted(part for part in root.rglob("*") if part.is_file()) if root.is_dir() else [root]:
        if root.is_dir():
            found.update(f"{file.relative_to(root).as_posix()}\0{file.stat().st_size}\0".encode())
        for block in _blocks(file):
            found.update(block)
    return found.hexdigest()


def _blocks(file: Path) -> Iterator[bytes]:
    try:
        with open_file(file) as stream:
            while block := stream.read(BLOCK):
                yield block
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}; make it readable.") from error


def _images(folder: Path, largest: int) -> Table:
    files = class_folders(folder, folder.resolve())
    names = Text([file.parent.name for file in files])
    return Table(str(folder), {IMAGE: Arrays(read_pixels(files, largest)), CLASS: names}, label=CLASS)


def _npz(file: Path, largest: int) -> Table:
    """Each array is a column; `y` holds the labels unless another one is named."""
    names: list[str] = []

    def every(present: Any) -> Any:
        names.extend(present)
        return present

    with npz_errors(file):
        arrays = read_arrays(file, every, largest)
        sizes = {name: len(array) if array.ndim else 0 for name, array in zip(names, arrays, strict=True)}
        if len(set(sizes.values())) != 1:
            raise DataError(f"{file} has arrays of different lengths, {reprlib.repr(sizes)}; give one row per example.")
        columns = {name: _column(file, name, array) for name, array in zip(names, arrays, strict=True)}
    return Table(str(file), columns, label="y" if "y" in columns else None)


def _column(file: Path, name: str, array: Any) -> Column:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.dtype.kind in "US" and array.ndim == 1:
        return Text([cell.decode() if isinstance(cell, bytes) else cell for cell in array.tolist()])
    if array.dtype.kind not in "iufb":
        raise DataError(f"{file}: the array {name!r} has the type {array.dtype}; give numbers or text of one axis.")
    if array.ndim == 1:
        return Numbers(torch.from_numpy(array.astype("float64")))
    return Arrays(torch.from_numpy(array if array.dtype.name == "uint8" else array.astype("float32")))
