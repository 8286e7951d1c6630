"""One's own images from a folder of class folders."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fromp.foundation.errors import DataError, install
from fromp.lab.data.arrays import Arrays, class_names, every_fifth, numbered

GREY, COLOUR = "L", "RGB"
GREY_MODES = ("1", GREY)
DEEP_MODES = ("I", "F")


def from_folder(path: str | os.PathLike[str]) -> Arrays:
    """A folder a class, its name the class's; below train/ and test/ if both are there, else divided."""
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; name one that has a folder of images for each class.")
    if not ((folder / "train").is_dir() and (folder / "test").is_dir()):
        pixels, labels = _pixels(_files(folder))
        names = class_names(labels)
        y = numbered(labels, names)
        test = every_fifth(y, names)
        return Arrays(pixels[~test], y[~test], pixels[test], y[test], names)
    train, test_files = _files(folder / "train"), _files(folder / "test")
    pixels, labels = _pixels([*train, *test_files])
    names = class_names(labels[: len(train)])
    y = numbered(labels, names)
    count = len(train)
    return Arrays(pixels[:count], y[:count], pixels[count:], y[count:], names)


def _files(folder: Path) -> list[Path]:
    """Every image of every class folder, in order of name."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"images need pillow; {install('lab')}.") from error
    endings = Image.registered_extensions()
    classes = sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
    if not classes:
        raise DataError(f"{folder} has no class folders; put the images of each class into a folder of its own.")
    files: list[Path] = []
    for directory in classes:
        inside = sorted(file for file in directory.iterdir() if file.suffix.lower() in endings and file.name[0] != ".")
        if not inside:
            raise DataError(f"{directory} has no images; add some or remove the folder.")
        files += inside
    return files


def _pixels(files: Sequence[Path]) -> tuple[Tensor, list[str]]:
    """uint8 (n, channels, height, width), one channel where every file is grey, and the classes' names."""
    from PIL import Image

    modes, size = set(), None
    for file in files:
        try:
            with Image.open(file) as picture:
                modes.add(picture.mode)
                if picture.mode.startswith(DEEP_MODES):
                    raise DataError(f"{file} has more than 8 bits a pixel (mode {picture.mode}); convert it to 8.")
                size = size or picture.size
                if picture.size != size:
                    raise DataError(
                        f"{file} is {picture.width} x {picture.height} pixels, {files[0]} is {size[0]} x {size[1]}; "
                        "resize all images to one size."
                    )
        except OSError as error:
            raise DataError(f"{file} cannot be read as an image: {error}; repair or remove it.") from error
    mode = GREY if modes <= set(GREY_MODES) else COLOUR
    return torch.stack([_read(file, mode) for file in files]), [file.parent.name for file in files]


def _read(file: Path, mode: str) -> Tensor:
    """One image: uint8 (channels, height, width)."""
    from PIL import Image

    try:
        with Image.open(file) as picture:
            raw = bytearray(picture.convert(mode).tobytes())
            height, width = picture.height, picture.width
    except OSError as error:
        raise DataError(f"{file} cannot be read as an image: {error}; repair or remove it.") from error
    return torch.frombuffer(raw, dtype=torch.uint8).view(height, width, -1).permute(2, 0, 1)
