"""Verified datasets on disk, one safetensors file each: written whole or not at all, read by memory map."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fromp.foundation.errors import DataError, install
from fromp.lab.data.arrays import Images

FORMAT = "1"


def cache_folder() -> Path:
    """XDG_CACHE_HOME/fromp, or ~/.cache/fromp."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fromp"


@dataclass(frozen=True)
class Cached:
    """One dataset's place in the cache; `fingerprint` stands for the digests of its source files."""

    name: str
    fingerprint: str
    train_shape: tuple[int, ...]
    test_shape: tuple[int, ...]
    class_names: tuple[str, ...]

    @property
    def path(self) -> Path:
        return cache_folder() / f"{self.name}.safetensors"

    def read(self) -> Images | None:
        """The images by memory map, or None where they are absent, cut short or made from other files."""
        try:
            with safe_open(self.path, framework="pt") as file:
                if file.metadata() != self._metadata():
                    return None
                tensors: dict[str, Tensor] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (FileNotFoundError, SafetensorError):
            return None
        kinds = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()}
        return Images(**tensors, class_names=self.class_names) if kinds == self._kinds() else None

    def write(self, images: Images, scratch: Path) -> None:
        """Put the images into the cache in one step."""
        tensors = {key: getattr(images, key).contiguous() for key in self._kinds()}
        kinds = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()}
        if kinds != self._kinds():
            raise DataError(f"{self.name} should have {self._kinds()}, not {kinds}; this is a fault of the table.")
        unfinished = scratch / self.path.name
        with _writing(self.path.parent):
            save_file(tensors, unfinished, metadata=self._metadata())
            unfinished.chmod(0o644)
            _flush(unfinished)
            os.replace(unfinished, self.path)
            _flush(self.path.parent)

    @contextmanager
    def locked(self) -> Iterator[Path]:
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
                scratch.mkdir()
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            lock.release()

    def _metadata(self) -> dict[str, str]:
        return {"name": self.name, "format": FORMAT, "fingerprint": self.fingerprint}

    def _kinds(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        return {
            "train_x": (torch.uint8, self.train_shape),
            "train_y": (torch.int64, self.train_shape[:1]),
            "test_x": (torch.uint8, self.test_shape),
            "test_y": (torch.int64, self.test_shape[:1]),
        }


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{folder} cannot be written: {error}; set XDG_CACHE_HOME to a folder with room for the data."
        ) from error


def _flush(path: Path) -> None:
    """Wait until a file or a folder's entries are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
