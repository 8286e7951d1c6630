"""One column as numbers for a network, with what the first month fixed: means, categories, the shape of images."""

import math
import re
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fromp.foundation.errors import CheckpointError, DataError
from fromp.foundation.state import State, field, tensor
from fromp.reading.columns import Arrays, Column, as_numbers, as_text, refuse

FAR = 5.0  # standard deviations, from which on a value counts by its logarithm: a wild one must not decide a step
FAR_AWAY = f"more than {FAR:g} standard deviations from the first month's mean"
MOST_CATEGORIES = 100
CHANNELS = (1, 3, 4)  # that an image may have
WORD_SLOTS = 256
WORD_NORM = math.sqrt(10)  # a text weighs as much as ten standardised columns
WORD = re.compile(r"\w+")
Counts = Counter[tuple[str, str]]  # (column, what was done to a cell) -> how often


class Encoder(ABC):
    """A column's name, and what turns its cells into numbers."""

    name: str

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one example's numbers."""

    @abstractmethod
    def encode(self, origin: str, column: Column, counts: Counts) -> Tensor:
        """float32 (n, *shape); what had to be replaced is counted."""

    @abstractmethod
    def written(self, example: Tensor) -> str:
        """What one example's numbers stand for, as far as that is still known."""

    @abstractmethod
    def state(self) -> State: ...


@final
@dataclass(frozen=True)
class Standardised(Encoder):
    """z = (x - mean) / std, beyond 5 as 5 + log(z - 4); a missing value is replaced by the median."""

    name: str
    median: float
    mean: float
    std: float
    kind: ClassVar[str] = "number"

    @property
    def shape(self) -> tuple[int, ...]:
        return (1,)

    @classmethod
    def first(cls, name: str, values: Tensor) -> "Standardised":
        """The scale of a column, from float64 values of which NaN are missing."""
        present = values[~values.isnan()]
        std = float(present.std(correction=0)) if len(present) else 0.0
        median, mean = (float(present.median()), float(present.mean())) if len(present) else (0.0, 0.0)
        return cls(name, median, mean, std if std > 0 else 1.0)

    def encode(self, origin: str, column: Column, counts: Counts) -> Tensor:
        values = as_numbers(column)
        if not isinstance(values, Tensor):
            refuse(origin, self.name, column, values, "is not a number, as in the first month; correct it.")
        missing = values.isnan()
        z = (values.masked_fill(missing, self.median) - self.mean) / self.std
        counts[self.name, "missing, replaced by the first month's median"] += int(missing.sum())
        counts[self.name, FAR_AWAY] += int((z.abs() > FAR).sum())
        return _drawn_in(z).float().unsqueeze(1)

    def written(self, example: Tensor) -> str:
        return f"{float(_drawn_out(example.double())) * self.std + self.mean:.4g}"

    def state(self) -> State:
        return {"median": self.median, "mean": self.mean, "std": self.std}

    @classmethod
    def from_state(cls, name: str, state: State) -> "Standardised":
        """The encoder that `state` describes."""
        values = [field(state, key, float) for key in ("median", "mean", "std")]
        if not all(map(math.isfinite, values)) or values[2] <= 0:
            raise CheckpointError(f"the saved scale of {name!r} is {values}; restore the folder from a copy.")
        return cls(name, *values)


@final
@dataclass(frozen=True)
class OneHot(Encoder):
    """One slot per category, and a last one for those that the first month did not have."""

    name: str
    categories: tuple[str, ...]
    kind: ClassVar[str] = "category"

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.categories) + 1,)

    @classmethod
    def first(cls, name: str, column: Column) -> "OneHot":
        """The most frequent categories of a column, in alphabetical order."""
        frequent = Counter(as_text(column)).most_common(MOST_CATEGORIES)
        return cls(name, tuple(sorted(category for category, _ in frequent)))

    def encode(self, origin: str, column: Column, counts: Counts) -> Tensor:
        slots = {category: index for index, category in enumerate(self.categories)}
        cells = as_text(column)
        counts[self.name, "not a category of the first month"] += sum(cell not in slots for cell in cells)
        indices = torch.tensor([slots.get(cell, len(slots)) for cell in cells], dtype=torch.long)
        return torch.nn.functional.one_hot(indices, len(slots) + 1).float()

    def written(self, example: Tensor) -> str:
        index = int(example.argmax())
        return (self.categories[index] or "(empty)") if index < len(self.categories) else "(new)"

    def state(self) -> State:
        return {"categories": list(self.categories)}

    @classmethod
    def from_state(cls, name: str, state: State) -> "OneHot":
        """The encoder that `state` describes."""
        categories = field(state, "categories", list)
        if not all(isinstance(one, str) for one in categories) or len(set(categories)) < len(categories):
            raise CheckpointError(f"the saved categories of {name!r} are not different texts; restore the folder.")
        return cls(name, tuple(categories))


@final
@dataclass(frozen=True)
class Words(Encoder):
    """How often each word occurs, as log(1 + count) in one of 256 slots by its CRC-32, scaled to one norm."""

    name: str
    kind: ClassVar[str] = "words"

    @property
    def shape(self) -> tuple[int, ...]:
        return (WORD_SLOTS,)

    def encode(self, origin: str, column: Column, counts: Counts) -> Tensor:
        found = torch.zeros(len(column), WORD_SLOTS)
        for row, cell in zip(found, as_text(column), strict=True):
            for word, times in Counter(WORD.findall(cell.lower())).items():
                row[zlib.crc32(word.encode()) % WORD_SLOTS] += times
        counts[self.name, "without words"] += int((found.sum(1) == 0).sum())
        return WORD_NORM * torch.nn.functional.normalize(found.log1p())

    def written(self, example: Tensor) -> str:
        return f"({int((example > 0).sum())} words)"

    def state(self) -> State:
        return {}

    @classmethod
    def from_state(cls, name: str, state: State) -> "Words":
        """The encoder that `state` describes."""
        return cls(name)


@final
@dataclass(frozen=True)
class Scaled(Encoder):
    """Arrays: a vector standardised number by number, an image channel by channel; bytes are no exception."""

    name: str
    size: tuple[int, ...]
    mean: Tensor
    std: Tensor
    kind: ClassVar[str] = "array"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size

    @classmethod
    def first(cls, origin: str, name: str, values: Tensor) -> "Scaled":
        """The shape and scale of the first month; images become (channels, height, width)."""
        size = tuple(values.shape[1:])
        if len(size) > 3 or 0 in size:
            raise DataError(f"{origin}: column {name!r} holds arrays of shape {size}; give vectors or images.")
        x = _laid_out(values).double()
        x = x.masked_fill(~x.isfinite(), math.nan)
        axes = [0] if x.ndim == 2 else [0, 2, 3]
        mean = x.nanmean(axes, keepdim=True).nan_to_num()[0]
        std = (x - mean).square().nanmean(axes, keepdim=True).sqrt().nan_to_num()[0]
        return cls(name, tuple(x.shape[1:]), mean.float(), torch.where(std > 0, std, 1.0).float())

    def encode(self, origin: str, column: Column, counts: Counts) -> Tensor:
        x = _laid_out(column.values).float() if isinstance(column, Arrays) else torch.empty(0)
        if len(self.size) == 3 and x.ndim == 4 and x.shape[1] == 1 and self.size[0] == 3:
            x = x.expand(-1, 3, -1, -1)  # a grey month of a stream in colour
        if tuple(x.shape[1:]) != self.size:
            found = " x ".join(map(str, x.shape[1:])) or "no arrays"
            raise DataError(
                f"{origin}: column {self.name!r} holds {found}, the first month's were "
                f"{' x '.join(map(str, self.size))}; resize or convert them."
            )
        wrong = ~x.isfinite()
        z = ((x - self.mean) / self.std).masked_fill(wrong, 0.0)
        counts[self.name, "not finite, replaced by the first month's mean"] += int(wrong.sum())
        counts[self.name, FAR_AWAY] += int((z.abs() > FAR).sum())
        return _drawn_in(z)

    def raw(self, example: Tensor) -> Tensor:
        """The values of one example as its file had them, to rounding."""
        return _drawn_out(example) * self.std + self.mean

    def written(self, example: Tensor) -> str:
        return f"({' x '.join(map(str, self.size))})"

    def state(self) -> State:
        return {"shape": list(self.size), "mean": self.mean, "std": self.std}

    @classmethod
    def from_state(cls, name: str, state: State) -> "Scaled":
        """The encoder that `state` describes."""
        shape = field(state, "shape", list)
        if not 1 <= len(shape) <= 3 or not all(type(size) is int and size > 0 for size in shape):
            raise CheckpointError(f"the saved shape of {name!r} is {shape}; restore the folder from a copy.")
        scale = shape if len(shape) == 1 else [shape[0], 1, 1]
        mean, std = tensor(state, "mean", *scale, floating=True), tensor(state, "std", *scale, floating=True)
        if not bool((std > 0).all()):
            raise CheckpointError(f"the saved scale of {name!r} is not positive; restore the folder from a copy.")
        return cls(name, tuple(shape), mean, std)


ENCODERS: dict[str, Any] = {one.kind: one for one in (Standardised, OneHot, Words, Scaled)}


def _drawn_in(z: Tensor) -> Tensor:
    """z up to 5, and sign(z) (5 + log(|z| - 4)) beyond."""
    return torch.where(z.abs() > FAR, z.sign() * (FAR + (z.abs() - FAR).clamp(min=0).log1p()), z)


def _drawn_out(drawn: Tensor) -> Tensor:
    """The z that `_drawn_in` took, to rounding."""
    return torch.where(drawn.abs() > FAR, drawn.sign() * (FAR + (drawn.abs() - FAR).clamp(min=0).expm1()), drawn)


def _laid_out(values: Tensor) -> Tensor:
    """Vectors as they are, images as (n, channels, height, width), also where the channels come last."""
    if values.ndim == 3:
        return values.unsqueeze(1)
    last = values.ndim == 4 and values.shape[1] not in CHANNELS and values.shape[3] in CHANNELS
    return values.permute(0, 3, 1, 2) if last else values
