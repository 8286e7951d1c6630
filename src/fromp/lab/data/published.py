"""The two kinds of dataset: published files, fetched, verified and cached; and the digits of scikit-learn.

The cache has one safetensors file per dataset, written whole or not at all and read by memory map.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fromp.foundation import storage
from fromp.foundation.errors import DataError, install
from fromp.lab.data.arrays import Arrays, every_fifth
from fromp.lab.data.find import CanonicalFile, first_of, holds, read_files
from fromp.lab.data.sources import Progress, Source

FOLDER_VARIABLE = "FROMP_DATA"
FORMAT = "1"  # the form of the files in the cache


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

    def load(self, folder: Path | None) -> Arrays:
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
    others: frozenset[str] = frozenset()  # digests of another dataset's files that have the same names
    pickled: tuple[str, ...] = ()  # files and folders of a version that is not read

    @property
    def cached(self) -> Path:
        """Its place in the cache."""
        return cache_folder() / f"{self.name}.safetensors"

    def load(self, folder: Path | None) -> Arrays:
        self.fetch(folder, lambda done, total: None)
        images = self._read()
        if images is None:
            raise DataError(f"{self.cached} vanished while it was read; load {self.name} again.")
        return images

    def fetch(self, folder: Path | None, progress: Progress) -> str:
        named = named_folder(folder)
        if self._read() is None:
            with self._locked() as scratch:
                if self._read() is None:
                    self._write(self._images(named, scratch, progress))
        return str(self.cached)

    def status(self) -> Status:
        named = named_folder(None)
        where = ""
        if named is not None and holds(named, self.files, self.archives):
            where = str(named)
        if self._read() is not None:
            where = str(self.cached)
        size = f"{self.sources[0].bytes / 1e6:.0f} MB"
        return Status(
            name=self.name,
            present=bool(where),
            where=where,
            images=self.train_shape[0] + self.test_shape[0],
            bytes=torch.Size(self.train_shape).numel() + torch.Size(self.test_shape).numel(),
            how=f"fromp data fetch {self.name} ({size}), or set {FOLDER_VARIABLE} to a folder with it",
        )

    def _images(self, named: Path | None, scratch: Path, progress: Progress) -> Arrays:
        """From the named folder, or else from the first source that gives the published bytes."""
        tried: list[str] = []
        if named is not None:
            raw = read_files(named, self.files, self.archives, scratch / "named", self.others)
            if raw is not None:
                return Arrays(*self.decode(raw), self.class_names)
            if refused := first_of(named, self.pickled):
                raise DataError(
                    f"{refused} is the Python version of {self.name}, a pickle, which is not read; "
                    f"put the binary version, {self.archives[0]} from {self.sources[0]}, into {named} instead."
                )
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
                return Arrays(*self.decode(raw), self.class_names)
            tried.append(f"{source}: none of its files is there")
        published = " or ".join((", ".join(file.name for file in self.files), *self.archives))
        raise DataError(
            f"{self.name} could not be fetched. Tried {'; '.join(tried)}. Put its published files ({published}) "
            f"into a folder and name it, as an argument or in the environment variable {FOLDER_VARIABLE}."
        )

    def _read(self) -> Arrays | None:
        """The cached images by memory map, or None where they are absent, cut short or made from other files."""
        if not self.cached.is_file():
            return None
        try:
            with safe_open(self.cached, framework="pt") as file:
                if file.metadata() != self._metadata:
                    return None
                tensors: dict[str, Tensor] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError):
            return None
        sound = _kinds(tensors) == self._expected and all(
            bool(((tensors[key] >= 0) & (tensors[key] < len(self.class_names))).all()) for key in ("train_y", "test_y")
        )
        return Arrays(**tensors, class_names=self.class_names) if sound else None

    def _write(self, images: Arrays) -> None:
        """Put the images into the cache in one step."""
        tensors = {key: getattr(images, key).contiguous() for key in self._expected}
        if _kinds(tensors) != self._expected:
            raise DataError(
                f"{self.name} should have {self._expected}, not {_kinds(tensors)}; this is a fault of the catalogue."
            )
        with _writing(self.cached.parent):
            storage.replace(self.cached, save(tensors, metadata=self._metadata))

    @contextmanager
    def _locked(self) -> Iterator[Path]:
        """An empty scratch folder, while no other process fetches the same dataset."""
        try:
            from filelock import FileLock
        except ImportError as error:
            raise DataError(f"fetching data needs filelock; {install('lab')}.") from error
        folder = cache_folder()
        scratch = folder / f"{self.name}.unfinished"
        lock = FileLock(folder / f"{self.name}.lock")
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        try:
            with _writing(folder):
                shutil.rmtree(scratch, ignore_errors=True)
                for killed in folder.glob(f".{self.cached.name}.*.tmp"):
                    killed.unlink()
                scratch.mkdir()
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            lock.release()

    @property
    def _metadata(self) -> dict[str, str]:
        fingerprint = hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()
        return {"name": self.name, "format": FORMAT, "fingerprint": fingerprint}

    @property
    def _expected(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        return {
            "train_x": (torch.uint8, self.train_shape),
            "train_y": (torch.int64, self.train_shape[:1]),
            "test_x": (torch.uint8, self.test_shape),
            "test_y": (torch.int64, self.test_shape[:1]),
        }


@dataclass(frozen=True)
class Digits:
    """The 1797 handwritten digits (1, 8, 8) of scikit-learn; the third of every five is for testing."""

    name: str = "digits"

    def load(self, folder: Path | None) -> Arrays:
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
        return Arrays(pixels[~test], labels[~test], pixels[test], labels[test], names)

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


def cache_folder() -> Path:
    """XDG_CACHE_HOME/fromp if that is set, else where the operating system keeps caches."""
    home = Path.home()
    usual = {"darwin": home / "Library" / "Caches", "win32": Path(os.environ.get("LOCALAPPDATA") or home)}
    return Path(os.environ.get("XDG_CACHE_HOME") or usual.get(sys.platform) or home / ".cache") / "fromp"


def _kinds(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    return {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()}


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{folder} cannot be written: {error}; set XDG_CACHE_HOME to a folder with room for the data."
        ) from error
