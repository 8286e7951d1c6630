"""The images of a folder of class folders as pixels."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fromp.foundation.errors import DataError, install
from fromp.foundation.storage import open_file

# Those that are decoded without another program: Pillow would start Ghostscript for a PostScript file.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
GREY, COLOUR = "L", "RGB"
GREY_MODES = ("1", GREY)
DEEP_MODES = ("I", "F")


class Encoded(NamedTuple):
    """An image in memory as it would be in a file, and how an error calls it."""

    name: str
    data: bytes

    def __str__(self) -> str:
        return self.name


def class_folders(folder: Path, inside: Path | None) -> list[Path]:
    """Every image of every class folder, in order of name. inside: where links may lead; anywhere if None."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"images need pillow; {install('learn')}.", name=error.name) from error
    endings = {ending for ending, format in Image.registered_extensions().items() if format in FORMATS}
    try:
        classes = sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
        if not classes:
            raise DataError(f"{folder} has no class folders; put the images of each class into a folder of its own.")
        files: list[Path] = []
        for directory in classes:
            images = sorted(
                file for file in directory.iterdir() if file.suffix.lower() in endings and file.name[0] != "."
            )
            if not images:
                raise DataError(f"{directory} has no images; add some or remove the folder.")
            files += images
        for path in (*classes, *files):
            if inside is not None and not path.resolve().is_relative_to(inside):
                raise DataError(
                    f"{path} is a link to {path.resolve()}, outside {inside}; copy it there, or give follow_links=True."
                )
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error}; make it readable.") from error
    return files


def read_pixels(files: Sequence[Path | Encoded], largest: int) -> Tensor:
    """uint8 (n, channels, height, width), one channel where every file is grey."""
    modes, size = set(), None
    for file in files:
        with _picture(file) as picture:
            modes.add(picture.mode)
            if picture.mode.startswith(DEEP_MODES):
                raise DataError(f"{file} has more than 8 bits a pixel (mode {picture.mode}); convert it to 8.")
            size = size or picture.size
            if picture.size != size:
                raise DataError(
                    f"{file} is {picture.width} x {picture.height} pixels, {files[0]} is {size[0]} x {size[1]}; "
                    "resize all images to one size."
                )
            total = len(files) * size[0] * size[1] * len(COLOUR)
            if total > largest:
                raise DataError(
                    f"{len(files)} images of {size[0]} x {size[1]} pixels, as {file}, have {total} bytes, the limit is "
                    f"{largest}; make them smaller, or give largest={total}."
                )
    mode = GREY if modes <= set(GREY_MODES) else COLOUR
    width, height = size or (0, 0)
    pixels = torch.empty(len(files), len(mode) if mode == COLOUR else 1, height, width, dtype=torch.uint8)
    for k, file in enumerate(files):
        with _picture(file) as picture:
            raw = bytearray(picture.convert(mode).tobytes())
            pixels[k] = torch.frombuffer(raw, dtype=torch.uint8).view(height, width, -1).permute(2, 0, 1)
    return pixels


@contextmanager
def _picture(file: Path | Encoded) -> Iterator[Any]:
    """An image that is opened and not decoded yet; whatever goes wrong with it is our error."""
    from PIL import Image, UnidentifiedImageError

    try:
        with _opened(file) as stream, Image.open(stream, formats=FORMATS) as picture:
            yield picture
    except DataError:
        raise
    except UnidentifiedImageError as error:  # its text names a file handle
        raise DataError(
            f"{file} cannot be read as an image: it is none of {', '.join(FORMATS)}; repair or remove it."
        ) from error
    except Exception as error:  # Pillow raises nearly anything
        raise DataError(
            f"{file} cannot be read as an image: {str(error) or type(error).__name__}; repair or remove it."
        ) from error


def _opened(file: Path | Encoded) -> Any:
    return io.BytesIO(file.data) if isinstance(file, Encoded) else open_file(file)
