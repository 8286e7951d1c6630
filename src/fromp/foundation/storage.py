"""A folder of tensors and settings that is written whole or not at all, and verified when it is read."""

import ctypes
import errno
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from torch import Tensor

from fromp.foundation.errors import CheckpointError
from fromp.foundation.state import State, flatten, unflatten

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

Converter: TypeAlias = Callable[[dict[str, Tensor], Any], State]

MANIFEST = "manifest.json"
LOCK = ".fromp-lock"
FORMAT = 2
RETRIES = 100  # how often a reader that meets a writer tries again
LARGEST_MANIFEST = 2**20  # bytes
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
NO_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
FILE = re.compile(r"(tensors-[0-9a-f]{16}\.safetensors|state-[0-9a-f]{16}\.json)")
TEMPORARY = re.compile(r"\.(tensors-|state-|manifest\.json).*\.tmp")
DTYPES = {  # the keys are the names in safetensors
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def write(folder: str | os.PathLike, kind: str, state: State) -> None:
    """Tensors as safetensors, the rest as JSON, under names that carry their SHA-256; then the manifest, atomically.

    Until the manifest is replaced, the folder still says what it said before. It may hold other files, which stay; it
    is refused if its manifest is of something else. Everything is readable by the owner alone.
    """
    folder = Path(folder)
    tensors, tree = flatten(state)
    contents = {
        "tensors": (".safetensors", serialise(tensors)),
        "state": (".json", json.dumps(tree, indent=1).encode()),
    }
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(folder):
            before = _own_files(folder, kind)
            for stale in folder.glob(".*.tmp"):  # a writer that has died left it: no other one holds the lock
                if TEMPORARY.fullmatch(stale.name):
                    stale.unlink(missing_ok=True)
            files = {}
            for role, (suffix, data) in contents.items():
                digest = hashlib.sha256(data).hexdigest()
                files[role] = {"name": f"{role}-{digest[:16]}{suffix}", "sha256": digest}
                replace(folder / files[role]["name"], data, private=True)
            manifest = {"kind": kind, "format": FORMAT, "files": files}
            replace(folder / MANIFEST, json.dumps(manifest, indent=1).encode(), private=True)
            for old in before - {entry["name"] for entry in files.values()}:
                (folder / old).unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {error.filename or folder} ({error.strerror or error}); what was saved there before is "
            "still there. Free some space, or give another folder."
        ) from error


def read(folder: str | os.PathLike, kind: str, older: Mapping[int, Converter] | None = None) -> State:
    """What `write` wrote, after checking every byte of it; a writer at work meanwhile does no harm.

    older: for each earlier format that can be read, what makes a state of its tensors and JSON values.
    """
    folder = Path(folder)
    for _ in range(RETRIES):
        manifest = _manifest(folder)
        try:
            return _read(folder, kind, manifest, older or {})
        except CheckpointError:
            if _manifest(folder) == manifest:  # nobody has replaced what it names
                raise
    raise CheckpointError(f"{folder} is being written all the time; stop the process that writes it.")


def kind_and_format(folder: str | os.PathLike) -> tuple[Any, Any]:
    """What a folder's manifest says that it holds, and in which format."""
    manifest = _manifest(Path(folder))
    return manifest.get("kind"), manifest.get("format")


def _read(folder: Path, kind: str, manifest: dict[str, Any], older: Mapping[int, Converter]) -> State:
    if manifest.get("kind") != kind:
        raise CheckpointError(f"{folder} holds '{manifest.get('kind')}', not '{kind}'; name the right folder.")
    written = manifest.get("format")
    convert = unflatten if written == FORMAT else older.get(written) if type(written) is int else None
    if convert is None:
        raise CheckpointError(
            f"{folder} has format {written}, this version of fromp reads {FORMAT}; "
            "read it with the version that wrote it."
        )
    data = {}
    for role, entry in _entries(folder, manifest).items():
        path = folder / entry["name"]
        try:
            with open_file(path) as file:
                data[role] = file.read()
        except (OSError, MemoryError) as error:
            reason = getattr(error, "strerror", "it does not fit into memory")
            raise CheckpointError(f"cannot read {path} ({reason}); restore the folder from a copy.") from error
        digest = hashlib.sha256(data[role]).hexdigest()
        if digest != entry["sha256"]:
            raise CheckpointError(
                f"{path} is damaged: its SHA-256 is {digest[:16]}..., the manifest says {entry['sha256'][:16]}...; "
                "restore the folder from a copy."
            )
    try:
        tensors = parse_tensors(data["tensors"])
        if strange := [name for name, value in tensors.items() if value.dtype not in DTYPES]:
            raise CheckpointError(f"'{strange[0]}' in {folder} is {tensors[strange[0]].dtype}; restore a copy.")
        return convert(tensors, json.loads(data["state"]))
    except (SafetensorError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot parse {folder}: {error}; restore it from a copy.") from error


def _entries(folder: Path, manifest: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Name and SHA-256 of each file that a manifest has to name; an error if it does not."""
    files, found = manifest.get("files"), {}
    for role in ("tensors", "state"):
        entry = files.get(role) if isinstance(files, dict) else None
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("sha256"), str)
            or not FILE.fullmatch(str(entry.get("name")))
        ):
            raise CheckpointError(f"{folder / MANIFEST} does not name its {role}; restore the folder from a copy.")
        found[role] = entry
    return found


def _own_files(folder: Path, kind: str) -> set[str]:
    """The files that the folder's manifest names, if there is one; an error if it is of something else."""
    if not (folder / MANIFEST).exists():
        return set()
    try:
        manifest = _manifest(folder)
        files = {entry["name"] for entry in _entries(folder, manifest).values()}
    except CheckpointError as error:
        raise CheckpointError(
            f"{folder / MANIFEST} is not one that fromp wrote, or is damaged; give another folder, or remove that file."
        ) from error
    if manifest.get("kind") != kind:
        raise CheckpointError(f"{folder} holds '{manifest.get('kind')}', not '{kind}'; give another folder.")
    return files


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """No other process or thread writes to the folder meanwhile."""
    if fcntl is not None:
        file = os.open(folder, os.O_RDONLY)
        lock: Callable[[], None] = partial(fcntl.flock, file, fcntl.LOCK_EX)
    else:  # Windows cannot lock a folder
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        lock = partial(msvcrt.locking, file, msvcrt.LK_LOCK, 1)
    try:
        lock()
        yield
    finally:
        os.close(file)  # this unlocks it


def serialise(tensors: dict[str, Tensor]) -> bytes:
    """The tensors in the safetensors format, in their order: its own writer needs numpy, this one does not."""
    header: dict[str, Any] = {}
    parts, end = [], 0
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise CheckpointError(f"'{name}' is {tensor.dtype}, which safetensors cannot hold; convert it first.")
        tensor = tensor.detach().cpu().contiguous()
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [start, end]}
        parts.append(ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b"")
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers begin at a multiple of eight
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def open_file(path: str | os.PathLike) -> BinaryIO:
    """A file to be read; an OSError if it is a pipe, a device or a folder: they may block, or never end."""
    file = os.open(path, os.O_RDONLY | NO_WAITING)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is a pipe, a device or a folder, not a file", str(path))
    return os.fdopen(file, "rb")


def replace(path: Path, data: bytes, private: bool = False) -> None:
    """Put `data` at `path` so that a reader sees the old content or the new, and a power cut keeps one of them.

    private: readable by the owner alone.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    # Exclusively: a link that someone has put there is not followed.
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW, 0o600 if private else 0o666)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        with open_file(path) as file:
            text = file.read(LARGEST_MANIFEST + 1)
        if len(text) > LARGEST_MANIFEST:
            raise ValueError(f"more than {LARGEST_MANIFEST} bytes")
        manifest = json.loads(text)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder} holds no {MANIFEST}; nothing was saved there, or the wrong folder is named."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); restore the folder from a copy.") from error
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{path} is damaged (not an object); restore the folder from a copy.")
    return manifest
