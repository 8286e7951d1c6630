"""A folder of tensors and settings that is written whole or not at all, and verified when it is read."""

import ctypes
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from torch import Tensor

from fromp.foundation.errors import CheckpointError
from fromp.foundation.state import State, flatten, unflatten

MANIFEST = "manifest.json"
FORMAT = 2
DTYPES = {  # by their names in safetensors
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def write(folder: str | os.PathLike, kind: str, state: State) -> None:
    """Tensors as safetensors, the rest as JSON, under names that carry their SHA-256; then the manifest, atomically.

    Until the manifest is replaced, the folder still says what it said before.
    """
    folder = Path(folder)
    tensors, tree = flatten(state)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot make the folder {folder} ({error.strerror}); give another.") from error
    contents = {
        "tensors": (".safetensors", serialise(tensors)),
        "state": (".json", json.dumps(tree, indent=1).encode()),
    }
    files = {}
    for role, (suffix, data) in contents.items():
        digest = hashlib.sha256(data).hexdigest()
        name = f"{role}-{digest[:16]}{suffix}"
        replace(folder / name, data)
        files[role] = {"name": name, "sha256": digest}
    manifest = {"kind": kind, "format": FORMAT, "files": files}
    replace(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    kept = {entry["name"] for entry in files.values()}
    for role, (suffix, _) in contents.items():
        for old in folder.glob(f"{role}-*{suffix}"):
            if old.name not in kept:
                old.unlink(missing_ok=True)


def read(folder: str | os.PathLike, kind: str) -> State:
    """What `write` wrote, after checking every byte of it."""
    folder = Path(folder)
    manifest = _manifest(folder)
    if manifest.get("kind") != kind:
        raise CheckpointError(f"{folder} holds '{manifest.get('kind')}', not '{kind}'; name the right folder.")
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder} has format {manifest.get('format')}, this version of fromp reads {FORMAT}; "
            "read it with the version that wrote it."
        )
    data = {}
    for role in ("tensors", "state"):
        files = manifest.get("files")
        entry = files.get(role) if isinstance(files, dict) else None
        if not isinstance(entry, dict) or not {"name", "sha256"} <= entry.keys():
            raise CheckpointError(f"{folder / MANIFEST} does not name its {role}; restore the folder from a copy.")
        path = folder / Path(str(entry["name"])).name
        try:
            data[role] = path.read_bytes()
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read ({error.strerror}); restore the folder from a copy."
            ) from error
        digest = hashlib.sha256(data[role]).hexdigest()
        if digest != entry["sha256"]:
            raise CheckpointError(
                f"{path} is damaged: its SHA-256 is {digest[:16]}..., the manifest says {entry['sha256'][:16]}...; "
                "restore the folder from a copy."
            )
    try:
        return unflatten(parse_tensors(data["tensors"]), json.loads(data["state"]))
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{folder} cannot be parsed: {error}; restore it from a copy.") from error


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


def replace(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that a reader sees the old content or the new, and a power cut keeps one of them."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
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
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder} holds no {MANIFEST}; nothing was saved there, or the wrong folder is named."
        ) from error
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); restore the folder from a copy.") from error
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{path} is damaged (not an object); restore the folder from a copy.")
    return manifest
