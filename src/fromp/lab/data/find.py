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
from fromp.foundation.storage import open_file

DEPTH = 3
LARGEST = 2**28  # bytes of one file; the largest published one has 153,700,000
LARGEST_ARCHIVE = 2**29  # bytes of all that an archive unpacks to; the largest published one has 184,380,000
MOST_MEMBERS = 10_000  # files in an archive
LONGEST_HEADER = 2**16  # bytes of anything in an archive that is no file, such as a long name
OPENERS: dict[str, Callable] = {"": lambda file: file, ".gz": gzip.open, ".xz": lzma.open}
DAMAGE = (
    OSError,
    MemoryError,
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
    return (location / name for location in directories(folder) for name in archives if _is_there(location / name))


def _subfolders(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _has(location: Path, recipe: Recipe) -> bool:
    return all(any(_is_there(location / (name + suffix)) for suffix in OPENERS) for name in recipe.names)


def _is_there(path: Path) -> bool:
    """Whether there is something to be read; a pipe or a device counts, and is refused when it is."""
    return os.path.exists(path) and not os.path.isdir(path)


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
    except Exception as error:  # Pillow raises nearly anything, also SyntaxError
        raise DataError(f"{location / recipe.names[0]} cannot be read: {error}") from error


def _read(location: Path, name: str) -> bytes:
    """The file's bytes, decompressed; a wrong file is never read past the size of the largest right one."""
    suffix = next(suffix for suffix in OPENERS if _is_there(location / (name + suffix)))
    with open_file(location / (name + suffix)) as file, OPENERS[suffix](file) as stream:
        raw: bytes = stream.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise DataError(f"{name}{suffix} unpacks to more than {LARGEST} bytes, the limit; get it again")
    return raw


class Member(tarfile.TarInfo):
    """A member of an archive whose header is refused before anything of it is read, if it asks for too much."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "Member":
        found = super().frombuf(buf, encoding, errors)
        if found.size < 0 or (not found.isreg() and found.size > LONGEST_HEADER):
            raise DataError(f"the header of {found.name!r} says {found.size} bytes, the limit is {LONGEST_HEADER}")
        return found


def _unpack(archive: Path, into: Path, wanted: set[str]) -> None:
    """The wanted files of an archive, without their paths, so that nothing is written outside `into`."""
    try:
        with (
            open_file(archive) as packed,
            gzip.open(packed) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|", tarinfo=Member) as tar,
        ):
            for number, member in enumerate(tar):
                if number >= MOST_MEMBERS or max(tar.offset, member.size) > LARGEST_ARCHIVE:
                    raise DataError(
                        f"it holds more than {MOST_MEMBERS} files or unpacks to more than {LARGEST_ARCHIVE} bytes, "
                        "the limits"
                    )
                name = PurePosixPath(member.name).name
                if name in wanted:
                    _extract(tar, member, into / name)
    except DAMAGE as error:
        raise DataError(f"{archive} cannot be read: {error}; get it again.") from error


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    stream = None if member.issym() or member.islnk() or member.issparse() else tar.extractfile(member)
    if stream is None:
        raise DataError(f"{member.name!r} in it is a link, a pipe or a device, not a file")
    with path.open("wb") as file:
        while block := stream.read(2**20):
            file.write(block)
