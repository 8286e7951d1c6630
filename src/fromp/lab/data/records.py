"""The canonical files as tensors, and the canonical CIFAR bytes rebuilt from other forms."""

import io
import json
import struct

import torch
from torch import Tensor

from fromp.foundation.errors import DataError, install
from fromp.lab.data.pickled import Bytes2D, read_batch

PIXELS = 3 * 32 * 32


def idx(raw: bytes) -> Tensor:
    """An idx file of bytes: uint8 (n,) or (n, height, width)."""
    dimensions = raw[3]
    start = 4 + 4 * dimensions
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    return torch.frombuffer(bytearray(raw[start:]), dtype=torch.uint8).view(shape)


def cifar(raw: bytes, label_bytes: int) -> tuple[Tensor, Tensor]:
    """CIFAR records: pixels uint8 (n, 3, 32, 32) and the last label byte of each, int64 (n,)."""
    records = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, label_bytes + PIXELS)
    pixels = records[:, label_bytes:].reshape(-1, 3, 32, 32)
    return pixels, records[:, label_bytes - 1].to(torch.int64)


def cifar_bytes(labels: list[list[int]], pixels: Tensor) -> bytes:
    """CIFAR records from one list of labels per label byte and pixels (n, 3072), the inverse of `cifar`."""
    columns = torch.tensor(labels, dtype=torch.uint8).T
    if len(columns) != len(pixels):
        raise DataError(f"{len(columns)} labels for {len(pixels)} images; get the files again.")
    buffer = bytearray(len(pixels) * (len(labels) + PIXELS))
    records = torch.frombuffer(buffer, dtype=torch.uint8).view(len(pixels), -1)
    records[:, : len(labels)] = columns
    records[:, len(labels) :] = pixels
    return bytes(buffer)


def cifar_from_python(raw: bytes, label_keys: tuple[str, ...]) -> bytes:
    """CIFAR records from a python batch, with one label byte for each of `label_keys`."""
    batch = read_batch(raw)
    missing = {"data", *label_keys} - batch.keys()
    if missing:
        raise DataError(f"a CIFAR python batch without {sorted(missing)}; it has {sorted(batch)}.")
    array = batch["data"]
    if not isinstance(array, Bytes2D) or array.columns != PIXELS:
        raise DataError(f"a CIFAR python batch whose data are not rows of {PIXELS} bytes; get the files again.")
    pixels = torch.frombuffer(bytearray(array.data), dtype=torch.uint8).view(array.rows, PIXELS)
    return cifar_bytes([batch[key] for key in label_keys], pixels)


def cifar_from_png(png: bytes, labels: bytes, first: int) -> bytes:
    """CIFAR records from a picture with an image (32, 32, 3) a row; its labels start at `first` of a JSON list."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(f"CIFAR-10 as pictures needs pillow; {install('lab')}.") from error
    with Image.open(io.BytesIO(png)) as picture:
        if (picture.width, picture.mode) != (32 * 32, "RGB"):
            raise DataError(f"a picture {picture.width} wide of mode {picture.mode}, not {32 * 32} and RGB.")
        rows = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    pixels = rows.view(-1, 32 * 32, 3).transpose(1, 2).reshape(-1, PIXELS)
    return cifar_bytes([json.loads(labels)[first : first + len(pixels)]], pixels)
