"""A table as inputs of a network: which columns are used and how, fixed by the first month."""

import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fromp.foundation.errors import CheckpointError, DataError, FrompError
from fromp.foundation.state import State, field
from fromp.learn.encoders import ENCODERS, MOST_CATEGORIES, Counts, Encoder, OneHot, Scaled, Standardised, Words
from fromp.reading.columns import Arrays, Column, Table, as_numbers, as_text


@dataclass(frozen=True)
class Encoding:
    """The encoders of the columns that are used, and why each other column is left out."""

    encoders: tuple[Encoder, ...]
    left_out: Mapping[str, str]

    @classmethod
    def first(
        cls,
        table: Table,
        label: str,
        drop: Collection[str] = (),
        categories: Collection[str] = (),
        words: Collection[str] = (),
    ) -> "Encoding":
        """How each column of the first month is used; only rows to be trained on should be in the table."""
        for name in (*drop, *categories, *words):
            if name not in table.columns or name == label:
                raise FrompError(f"{table.origin} has no input column {name!r}; it has {_names(table, label)}.")
        encoders: list[Encoder] = []
        left_out = dict.fromkeys(drop, "left out as asked")
        for name, column in table.columns.items():
            if name == label or name in left_out:
                continue
            if name in categories or name in words:
                encoders.append(OneHot.first(name, column) if name in categories else Words(name))
            elif isinstance(found := _suitable(table.origin, name, column), Encoder):
                encoders.append(found)
            else:
                left_out[name] = found
        if not encoders:
            raise DataError(
                f"{table.origin} has no column to learn from beside {label!r}; it has {_names(table, label)}."
            )
        images = [one for one in encoders if len(one.shape) == 3]
        if images and len(encoders) > 1:
            others = ", ".join(one.name for one in encoders if one is not images[0])
            raise DataError(f"{table.origin} has images in {images[0].name!r} beside {others}; drop one or the other.")
        return cls(tuple(encoders), left_out)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example's inputs: (channels, height, width) of images, else (width,)."""
        if len(self.encoders[0].shape) == 3:
            return self.encoders[0].shape
        return (sum(encoder.shape[0] for encoder in self.encoders),)

    def without(self, drop: Collection[str]) -> "Encoding":
        """With further columns left out, none of which is in use."""
        if used := {encoder.name for encoder in self.encoders} & set(drop):
            raise FrompError(
                f"the column {min(used)!r} is in use since the first month; start another state without it."
            )
        return replace(self, left_out={**self.left_out, **dict.fromkeys(drop, "left out as asked")})

    def encode(self, table: Table, label: str) -> tuple[Tensor, Counts]:
        """float32 (n, *shape), and what had to be replaced; an error unless the columns are the first month's."""
        names = [encoder.name for encoder in self.encoders]
        lacking = [name for name in names if name not in table.columns]
        new = [name for name in table.columns if name not in (*names, *self.left_out, label)]
        if lacking or new:
            said = [f"lacks the columns {reprlib.repr(lacking)}"] * bool(lacking)
            said += [f"has new columns {reprlib.repr(new)}"] * bool(new)
            way_out = "rename or fill them" if lacking else f"drop them: --drop {new[0]}"
            raise DataError(
                f"{table.origin} {' and '.join(said)}; the first month had {reprlib.repr(names)}: {way_out}, or start "
                "another state."
            )
        counts: Counts = Counts()
        parts = [encoder.encode(table.origin, table.columns[encoder.name], counts) for encoder in self.encoders]
        return torch.cat(parts, 1), +counts

    def written(self, example: Tensor) -> dict[str, str]:
        """One example's inputs by column, in the units of the file."""
        return {encoder.name: encoder.written(part) for encoder, part in self._parts(example)}

    def image(self, example: Tensor) -> Tensor | None:
        """The pixels of one example, if the inputs are images."""
        (encoder, part), *_ = self._parts(example)
        return encoder.raw(part) if isinstance(encoder, Scaled) and len(encoder.shape) == 3 else None

    def _parts(self, example: Tensor) -> Iterator[tuple[Encoder, Tensor]]:
        sizes = [encoder.shape[0] for encoder in self.encoders]
        yield from zip(self.encoders, example.split(sizes), strict=True)

    def state(self) -> State:
        """Everything it holds."""
        columns = [{"name": one.name, "kind": _kind(one), "fitted": one.state()} for one in self.encoders]
        return {"columns": columns, "left_out": dict(self.left_out)}

    @classmethod
    def from_state(cls, state: State) -> "Encoding":
        """The encoding that `state` describes."""
        encoders = []
        for column in field(state, "columns", list):
            name, kind = field(column, "name", str), field(column, "kind", str)
            if kind not in ENCODERS:
                raise CheckpointError(f"the saved column {name!r} is of the kind {kind!r}; restore the folder.")
            encoders.append(ENCODERS[kind].from_state(name, field(column, "fitted", dict)))
        images = sum(len(one.shape) == 3 for one in encoders)
        if not encoders or (images and len(encoders) > 1) or len({one.name for one in encoders}) < len(encoders):
            raise CheckpointError("the saved columns do not make up an input; restore the folder from a copy.")
        return cls(tuple(encoders), {str(name): str(why) for name, why in field(state, "left_out", dict).items()})


def _kind(encoder: Encoder) -> str:
    return next(kind for kind, one in ENCODERS.items() if type(encoder) is one)


def _suitable(origin: str, name: str, column: Column) -> Encoder | str:
    """An encoder that suits the cells; else why the column is left out."""
    if isinstance(column, Arrays):
        return Scaled.first(origin, name, column.values)
    values = as_numbers(column)
    if isinstance(values, Tensor):
        return Standardised.first(name, values) if not bool(values.isnan().all()) else "empty in the first month"
    cells = as_text(column)
    different = set(cells)
    if len(different) <= MOST_CATEGORIES and 2 * len(different) <= len(cells):
        return OneHot.first(name, column)
    if sum(" " in cell for cell in different) > len(different) / 2:
        return Words(name)
    return f"{len(different)} different texts in {len(cells)} rows, mostly of one word"


def _names(table: Table, label: str) -> str:
    return reprlib.repr([name for name in table.columns if name != label])


def describe(encoding: Encoding) -> Sequence[str]:
    """One line per kind of column, and one per column that is left out."""
    by_kind: dict[str, list[str]] = {}
    for encoder in encoding.encoders:
        by_kind.setdefault(_kind(encoder), []).append(encoder.name)
    lines = [f"{kind}: {', '.join(names)}" for kind, names in by_kind.items()]
    return [*lines, *(f"left out: {name} ({why})" for name, why in encoding.left_out.items())]
