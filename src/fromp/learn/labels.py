"""What a month's label column holds: classes, of which there may be more later, or a quantity."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fromp.foundation.errors import CheckpointError, DataError
from fromp.foundation.state import State, field
from fromp.likelihoods import Categorical, Gaussian, Likelihood
from fromp.reading.columns import Column, as_numbers, as_text, refuse
from fromp.reading.labels import class_names, third_of_five

FEW = 20  # different whole numbers up to which they are classes
ROWS_PER_CLASS = 5  # that a class needs when it is new: one of them is held out


class Label(ABC):
    """A label column: what it means, how its cells become targets, and what a prediction is called."""

    name: str
    metric: str
    unit: str

    @property
    @abstractmethod
    def likelihood(self) -> Likelihood: ...

    @property
    @abstractmethod
    def num_outputs(self) -> int: ...

    @abstractmethod
    def updated(self, origin: str, column: Column) -> "Label":
        """With the classes that are new in a month; an error if the column is of another kind."""

    @abstractmethod
    def targets(self, origin: str, column: Column) -> Tensor:
        """What the likelihood compares outputs with: (n,) classes or (n, 1) standardised values."""

    @abstractmethod
    def held_out(self, targets: Tensor) -> Tensor:
        """Which rows are for testing, a fifth: bool (n,)."""

    @abstractmethod
    def score(self, f: Tensor, targets: Tensor) -> float:
        """How good outputs are, in the units of `metric`."""

    @abstractmethod
    def shown(self, score: float) -> str:
        """A score for a person to read."""

    @abstractmethod
    def written(self, targets: Tensor) -> list[str]:
        """Targets as the file had them."""

    @abstractmethod
    def state(self) -> State: ...


@final
@dataclass(frozen=True)
class Classes(Label):
    """One of several classes. A class that is new in a later month is added behind those that were there."""

    name: str
    names: tuple[str, ...]
    metric = "accuracy"
    unit = "%"

    @property
    def likelihood(self) -> Likelihood:
        return Categorical()

    @property
    def num_outputs(self) -> int:
        return len(self.names)

    @classmethod
    def first(cls, origin: str, name: str, column: Column) -> "Classes":
        """The classes of the first month."""
        return cls(name, ()).updated(origin, column)

    def updated(self, origin: str, column: Column) -> "Classes":
        labels = _classes(origin, self.name, column)
        sizes = Counter(labels)
        new = class_names([label for label in sizes if label not in self.names])
        rare = [label for label in new if sizes[label] < ROWS_PER_CLASS]
        if len(rare) > FEW:
            raise DataError(
                f"{origin} has {len(sizes)} different values in column {self.name!r}, such as {rare[-1]!r}; a class "
                f"needs at least {ROWS_PER_CLASS} rows: name the column that holds classes, or start another state for "
                "a quantity."
            )
        if rare:
            before = f"a class that is new after {', '.join(self.names[:10])}" if self.names else "a class"
            refuse(
                origin, self.name, column, labels.index(rare[0]),
                f"stands in {sizes[rare[0]]} of {len(labels)} rows; {before} needs at least {ROWS_PER_CLASS}: correct "
                "the label, or add rows.",
            )  # fmt: skip
        if len(sizes) < 2:
            raise DataError(
                f"{origin} has one class, {next(iter(sizes), 'none')!r}, in column {self.name!r}; a month needs at "
                "least two: join it with the next one."
            )
        return Classes(self.name, (*self.names, *new))

    def targets(self, origin: str, column: Column) -> Tensor:
        places = {label: index for index, label in enumerate(self.names)}
        labels = _classes(origin, self.name, column)
        for index, label in enumerate(labels):
            if label not in places:
                known = ", ".join(self.names[:10])
                refuse(origin, self.name, column, index, f"is none of the classes learned so far: {known}.")
        return torch.tensor([places[label] for label in labels])

    def held_out(self, targets: Tensor) -> Tensor:
        return third_of_five(targets)

    def score(self, f: Tensor, targets: Tensor) -> float:
        return 100 * float((f.argmax(1) == targets).float().mean())

    def shown(self, score: float) -> str:
        return f"{score:.1f}"

    def written(self, targets: Tensor) -> list[str]:
        return [self.names[index] for index in targets.tolist()]

    def state(self) -> State:
        return {"kind": "classes", "name": self.name, "names": list(self.names)}


@final
@dataclass(frozen=True)
class Quantity(Label):
    """A number, standardised with the first month's mean and standard deviation."""

    name: str
    mean: float
    std: float
    metric = "root mean square error"
    unit = ""

    @property
    def likelihood(self) -> Likelihood:
        return Gaussian()

    @property
    def num_outputs(self) -> int:
        return 1

    @classmethod
    def first(cls, origin: str, name: str, column: Column) -> "Quantity":
        """The scale of the first month."""
        values = _quantities(origin, name, column)
        std = float(values.std(correction=0))
        if not std > 0:
            raise DataError(
                f"{origin} has one value, {float(values[0]):g}, in column {name!r}; there is nothing to learn."
            )
        return cls(name, float(values.mean()), std)

    def updated(self, origin: str, column: Column) -> "Quantity":
        _quantities(origin, self.name, column)
        return self

    def targets(self, origin: str, column: Column) -> Tensor:
        return ((_quantities(origin, self.name, column) - self.mean) / self.std).float().unsqueeze(1)

    def held_out(self, targets: Tensor) -> Tensor:
        return torch.arange(len(targets)) % 5 == 2

    def score(self, f: Tensor, targets: Tensor) -> float:
        return self.std * float((f - targets).square().mean().sqrt())

    def shown(self, score: float) -> str:
        return f"{score:.4g}"

    def written(self, targets: Tensor) -> list[str]:
        return [f"{value:g}" for value in (targets.double().flatten() * self.std + self.mean).tolist()]

    def state(self) -> State:
        return {"kind": "quantity", "name": self.name, "mean": self.mean, "std": self.std}


def label_of(origin: str, name: str, column: Column, kind: type[Classes] | type[Quantity] | None = None) -> Label:
    """Classes if the column holds text or few different whole numbers, else a quantity; or what is asked for."""
    if kind is None:
        values = as_numbers(column)
        distinct = values[~values.isnan()].unique() if isinstance(values, Tensor) else torch.empty(0)
        few = len(distinct) <= FEW and bool((distinct == distinct.round()).all())
        kind = Classes if few or not isinstance(values, Tensor) else Quantity
    return kind.first(origin, name, column)


def label_from(state: State) -> Label:
    """The label that `state` describes."""
    kind, name = field(state, "kind", str), field(state, "name", str)
    if kind == "classes":
        names = field(state, "names", list)
        if (
            len(names) < 2
            or len({str(one) for one in names}) < len(names)
            or not all(isinstance(one, str) for one in names)
        ):
            raise CheckpointError(f"the saved classes are {names}; restore the folder from a copy.")
        return Classes(name, tuple(names))
    mean, std = field(state, "mean", float), field(state, "std", float)
    if kind != "quantity" or not (math.isfinite(mean) and 0 < std < math.inf):
        raise CheckpointError(
            f"the saved label is {kind} with mean {mean} and std {std}; restore the folder from a copy."
        )
    return Quantity(name, mean, std)


def _classes(origin: str, name: str, column: Column) -> Sequence[str]:
    """The class of each row; whole numbers are written without a point."""
    values = as_numbers(column)
    whole = isinstance(values, Tensor) and bool((values == values.round()).all())
    labels = [str(int(value)) for value in values.tolist()] if isinstance(values, Tensor) and whole else as_text(column)
    if len(labels) != len(column):
        raise DataError(f"{origin}: column {name!r} holds arrays; labels are text or numbers.")
    missing = next((index for index, label in enumerate(labels) if not label), None)
    if missing is not None:
        refuse(origin, name, column, missing, "is an empty label; fill it or drop the row.")
    return labels


def _quantities(origin: str, name: str, column: Column) -> Tensor:
    """The number in each row: float64 (n,)."""
    values = as_numbers(column)
    if not isinstance(values, Tensor):
        refuse(
            origin, name, column, values, "is not a number, and the label is a quantity; correct it or drop the row."
        )
    if bool(values.isnan().any()):
        refuse(origin, name, column, int(values.isnan().nonzero()[0]), "is no finite number; fill it or drop the row.")
    return values
