"""Finds a dataset's canonical files in a folder, whatever their form, and verifies every byte."""

import gzip
import hashlib
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fromp.foundation.errors import DataError

DEPTH = 3
LARGEST = 2**28
OPENERS: dict[str, Callable] = {"": open, ".gz": gzip.open, ".xz": lzma.open}
DAMAGE = (
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    ValueError,
    TypeError,
    RuntimeError,
)


@dataclass(frozen=True)
class Recipe:
    """A form a file may be stored in: `build` makes the canonical bytes of the named files of one folder."""

    names: tuple[str, ...]
    build: Callable[..., bytes]


@dataclass(frozen=True)
class CanonicalFile:
    """A file as its authors published it, known by its SHA-256."""

    name: str
    sha256: str
    recipes: tuple[Recipe, ...]


def read_files(
    folder: Path,
    files: tuple[CanonicalFile, ...],
    archives: tuple[str, ...],
    scratch: Path,
    others: frozenset[str],
) -> dict[str, bytes] | None:
    """The verified canonical bytes of every file by name, or None where the folder has none of them.

    Archives with one of the names `archives` are unpacked into `scratch`. Files of another dataset under the
    same names, known by their digests `others`, are passed over.
    """
    wanted = {name + suffix for file in files for recipe in file.recipes for name in recipe.names for suffix in OPENERS}
    locations = list(directories(folder))
    for number, archive in enumerate(find_archives(folder, archives)):
        into = scratch / str(number)
        into.mkdir(parents=True)
        _unpack(archive, into, wanted)
        locations.append(into)
    found = {file.name: raw for file in files if (raw := _read_file(file, locations, others)) is not None}
    if not found:
        return None
    absent = [file.name for file in files if file.name not in found]
    if absent:
        raise DataError(f"{folder} has {', '.join(found)} but not {', '.join(absent)}; add what is missing.")
    return found


def holds(folder: Path, files: tuple[CanonicalFile, ...], archives: tuple[str, ...]) -> bool:
    """Whether the folder seems to have every file, by name only."""
    locations = list(directories(folder))
    complete = all(any(_has(location, recipe) for location in locations for recipe in file.recipes) for file in files)
    return complete or any(True for _ in find_archives(folder, archives))


def first_of(folder: Path, names: tuple[str, ...]) -> Path | None:
    """The first file or folder of one of these names, the folder itself included."""
    locations = (path for location in directories(folder) for path in (location, *(location / name for name in names)))
    return next((path for path in locations if path.name in names and path.exists()), None)


def directories(folder: Path) -> Iterator[Path]:
    """The folder and its subfolders, nearest first, to a depth that never walks a whole disk."""
    level = [folder]
    yield folder
    for _ in range(DEPTH):
        level = sorted(child for parent in level for child in _subfolders(parent))
        yield from level


def find_archives(folder: Path, archives: tuple[str, ...]) -> Iterator[Path]:
    """Every archive of one of these names in the folder or its subfolders."""
    return (location / name for location in directories(folder) for name in archives if (location / name).is_file())


def _subfolders(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]
    except PermissionError:
        return []


def _has(location: Path, recipe: Recipe) -> bool:
    return all(any((location / (name + suffix)).is_file() for suffix in OPENERS) for name in recipe.names)


def _read_file(file: CanonicalFile, locations: list[Path], others: frozenset[str]) -> bytes | None:
    refused: list[str] = []
    for location in locations:
        for recipe in file.recipes:
            if not _has(location, recipe):
                continue
            raw = _build(location, recipe)
            digest = hashlib.sha256(raw).hexdigest()
            if digest == file.sha256:
                return raw
            if digest not in others:
                refused.append(
                    f"{location / recipe.names[0]} is not the published {file.name}: "
                    f"expected SHA-256 {file.sha256}, found {digest} over {len(raw)} bytes"
                )
    if refused:
        raise DataError("; ".join(refused) + "; remove it or get it again.")
    return None


def _build(location: Path, recipe: Recipe) -> bytes:
    try:
        return recipe.build(*(_read(location, name) for name in recipe.names))
    except DAMAGE as error:
        raise DataError(f"{location / recipe.names[0]} cannot be read: {error}") from error


def _read(location: Path, name: str) -> bytes:
    """The file's bytes, decompressed; a wrong file is never read past the size of the largest right one."""
    suffix = next(suffix for suffix in OPENERS if (location / (name + suffix)).is_file())
    with OPENERS[suffix](location / (name + suffix), "rb") as stream:
        return stream.read(LARGEST)


def _unpack(archive: Path, into: Path, wanted: set[str]) -> None:
    """The wanted files of an archive, without their paths, so that nothing is written outside `into`."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                stream = tar.extractfile(member) if name in wanted else None
                if stream is not None:
                    with (into / name).open("wb") as file:
                        while block := stream.read(2**20):
                            file.write(block)
    except DAMAGE as error:
        raise DataError(f"{archive} cannot be read: {error}; get it again.") from error
