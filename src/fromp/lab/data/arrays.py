"""Labelled examples as tensors, already divided into training and test."""

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fromp.foundation.errors import DataError
from fromp.reading.labels import third_of_five


@dataclass(frozen=True)
class Arrays:
    """Inputs (n, ...), of images uint8 (n, channels, height, width); labels int64 (n,) from 0 into `class_names`."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    class_names: tuple[str, ...]

    def floats(self) -> "Arrays":
        """The same examples with inputs as float32, bytes scaled to [0, 1]."""
        return Arrays(unit(self.train_x), self.train_y, unit(self.test_x), self.test_y, self.class_names)


def unit(pixels: Tensor) -> Tensor:
    """Bytes 0..255 as float32 in [0, 1], same shape; numbers of any other type as they are, in float32."""
    return pixels.to(torch.float32) / 255 if pixels.dtype == torch.uint8 else pixels.to(torch.float32)


def numbered(labels: Sequence[str | int], names: tuple[str, ...]) -> Tensor:
    """Each label's place in `names`: int64 (n,)."""
    places = {name: index for index, name in enumerate(names)}
    unknown = {str(label) for label in labels} - places.keys()
    if unknown:
        raise DataError(
            f"the test data have classes {reprlib.repr(sorted(unknown))} that the training data lack; "
            f"training has {reprlib.repr(list(names))}."
        )
    return torch.tensor([places[str(label)] for label in labels], dtype=torch.int64)


def every_fifth(labels: Tensor, class_names: tuple[str, ...]) -> Tensor:
    """Which examples are for testing, the third of every five of each class in the order given: bool (n,)."""
    sizes = labels.bincount(minlength=len(class_names))
    if len(small := (sizes < 3).nonzero().flatten()):
        raise DataError(
            f"class {class_names[int(small[0])]!r} has {int(sizes[small[0]])} examples and a test split needs at least "
            "3; add examples, or give training and test data separately."
        )
    return third_of_five(labels)
