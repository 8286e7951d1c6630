"""A table: columns of one length by name, each of text, of numbers, or of arrays."""

import math
import os
import reprlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from fromp.foundation.errors import DataError
from fromp.reading.csv_rows import read_rows

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "-nan", "#n/a"))  # all in lower case
SEPARATORS = ",;\t|"


@dataclass(frozen=True)
class Text:
    """Cells as they are written; an empty one is missing."""

    cells: Sequence[str]
    lines: Sequence[int] | None = None  # where each cell stands in its file

    def __len__(self) -> int:
        return len(self.cells)

    def take(self, indices: Sequence[int]) -> "Text":
        """The cells at these places."""
        lines = self.lines and [self.lines[index] for index in indices]
        return Text([self.cells[index] for index in indices], lines)

    def place(self, index: int) -> str:
        """How an error names the place of a cell."""
        return f"row {index + 1}" if self.lines is None else f"line {self.lines[index]}"


@dataclass(frozen=True)
class Numbers:
    """float64 (n,), NaN where a value is missing."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def take(self, indices: Sequence[int]) -> "Numbers":
        """The values at these places."""
        return Numbers(self.values[[*indices]])


@dataclass(frozen=True)
class Arrays:
    """An array for each row: (n, ...), bytes or float32."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def take(self, indices: Sequence[int]) -> "Arrays":
        """The arrays at these places."""
        return Arrays(self.values[[*indices]])


Column: TypeAlias = Text | Numbers | Arrays


@dataclass(frozen=True)
class Table:
    """Columns of one length, and where they are from."""

    origin: str
    columns: Mapping[str, Column]
    label: str | None = None  # None if the file has no name for it

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def take(self, indices: Sequence[int]) -> "Table":
        """The rows at these places."""
        return Table(self.origin, {name: column.take(indices) for name, column in self.columns.items()}, self.label)


def read_csv(path: str | os.PathLike[str], encoding: str = "utf-8-sig") -> Table:
    """Every column as text. Cells are separated by what splits the header into most: a comma, semicolon, tab or bar."""
    rows = read_rows(path, encoding, _separator)
    _, header = next(rows)
    if len(set(header)) != len(header) or not header:
        twice = next((name for name in header if header.count(name) > 1), "")
        raise DataError(f"{path} has {header.count(twice)} columns {twice!r}; give every column a name of its own.")
    lines, cells = array("q"), [[] for _ in header]  # type: tuple[array[int], list[list[str]]]
    for line, row in rows:
        lines.append(line)
        for column, cell in zip(cells, row, strict=True):
            column.append(cell.strip())
    return Table(str(path), {name: Text(column, lines) for name, column in zip(header, cells, strict=True)})


def as_numbers(column: Column) -> Tensor | int:
    """float64 (n,), NaN where a cell is missing or not finite; else the place of the first cell that is no number."""
    if isinstance(column, Numbers):
        return column.values.masked_fill(~column.values.isfinite(), math.nan)
    if isinstance(column, Arrays):
        return 0
    values = array("d")
    for index, cell in enumerate(column.cells):
        try:
            values.append(math.nan if cell.lower() in MISSING else _number(cell))
        except ValueError:
            return index
    found = torch.frombuffer(values, dtype=torch.float64).clone() if values else torch.empty(0, dtype=torch.float64)
    return found.masked_fill(~found.isfinite(), math.nan)


def as_text(column: Column) -> Sequence[str]:
    """Each cell as text, whole numbers without a point; an empty text where a cell is missing."""
    if isinstance(column, Text):
        return ["" if cell.lower() in MISSING else cell for cell in column.cells]
    return [_written(value) for value in column.values.tolist()] if isinstance(column, Numbers) else []


def refuse(origin: str, name: str, column: Column, index: int, what: str) -> NoReturn:
    """An error that names the file, the line, the column and the cell."""
    cell = reprlib.repr(column.cells[index]) if isinstance(column, Text) else "an array"
    place = column.place(index) if isinstance(column, Text) else f"row {index + 1}"
    raise DataError(f"{origin}, {place}: {cell} in column {name!r} {what}")


def _separator(first_line: str) -> str:
    """The sign of which there are most outside of quotation marks; the comma if there is none."""
    bare = "".join(first_line.split('"')[::2])
    return max(SEPARATORS, key=bare.count)


def _number(cell: str) -> float:
    if "_" in cell:  # Python allows it between digits
        raise ValueError
    return float(cell)


def _written(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return ""
    return str(int(value)) if float(value).is_integer() else str(value)
