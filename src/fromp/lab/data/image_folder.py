"""One's own images from a folder of class folders, divided into training and test."""

import os
from pathlib import Path

from fromp.foundation.errors import DataError
from fromp.lab.data.arrays import Arrays, every_fifth, numbered
from fromp.reading import LARGEST
from fromp.reading.images import class_folders, read_pixels
from fromp.reading.labels import class_names


def from_folder(path: str | os.PathLike[str], largest: int = LARGEST, follow_links: bool = False) -> Arrays:
    """One folder per class, named after it, below train/ and test/ if both are there, else divided.

    largest: bytes that all images together may have as pixels.
    follow_links: also read folders and images that are links to something outside the folder.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; name one that has a folder of images for each class.")
    inside = None if follow_links else folder.resolve()
    if not ((folder / "train").is_dir() and (folder / "test").is_dir()):
        files = class_folders(folder, inside)
        pixels, labels = read_pixels(files, largest), [file.parent.name for file in files]
        names = class_names(labels)
        y = numbered(labels, names)
        test = every_fifth(y, names)
        return Arrays(pixels[~test], y[~test], pixels[test], y[test], names)
    train, test_files = class_folders(folder / "train", inside), class_folders(folder / "test", inside)
    pixels, labels = read_pixels([*train, *test_files], largest), [file.parent.name for file in (*train, *test_files)]
    names = class_names(labels[: len(train)])
    y = numbered(labels, names)
    count = len(train)
    return Arrays(pixels[:count], y[:count], pixels[count:], y[count:], names)
