"""Labels as classes: their names in order, and a division that gives every class its share."""

import reprlib
from collections.abc import Sequence

import torch
from torch import Tensor

from fromp.foundation.errors import DataError

LONGEST_LABEL = 1000  # characters


def class_names(labels: Sequence[str | int]) -> tuple[str, ...]:
    """The different labels in order: by value where all are whole numbers, else by alphabet."""
    names = {str(label) for label in labels}
    for name in names:
        if len(name) > LONGEST_LABEL:
            raise DataError(
                f"the label {reprlib.repr(name)} has {len(name)} characters, the limit is {LONGEST_LABEL}; "
                "use shorter labels."
            )
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            raise DataError(f"the label {reprlib.repr(name)} cannot be written as UTF-8; rename it.")
    numbers = all(name.removeprefix("-").isdecimal() for name in names)
    return tuple(sorted(names, key=int) if numbers else sorted(names))


def third_of_five(labels: Tensor) -> Tensor:
    """Which examples are the third of every five of their class, in the order given: bool (n,)."""
    sizes = labels.bincount()
    by_class = labels.argsort(stable=True)
    place = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)  # within its class
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    chosen[by_class[place % 5 == 2]] = True
    return chosen
