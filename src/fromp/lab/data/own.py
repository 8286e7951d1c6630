"""One's own examples from an .npz file, a CSV file or any map-style Dataset, divided into training and test."""

import operator
import os
import reprlib
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fromp.foundation.errors import DataError
from fromp.lab.data.arrays import Arrays, every_fifth, numbered, unit
from fromp.reading import LARGEST
from fromp.reading.csv_rows import column_of, read_rows
from fromp.reading.labels import class_names
from fromp.reading.npz import npz_errors, read_arrays

NPZ_DIVIDED = (("train_x", "train_y", "test_x", "test_y"), ("x_train", "y_train", "x_test", "y_test"))
NPZ_WHOLE = ("x", "y")

Labelled = tuple[Tensor, Sequence[str | int]]


def from_npz(path: str | os.PathLike[str], largest: int = LARGEST) -> Arrays:
    """Arrays train_x, train_y, test_x, test_y (or x_train, ...), or x and y to be divided; bytes become [0, 1].

    largest: bytes that the file may unpack to if that is more than it has itself.
    """
    with npz_errors(path):
        parts = read_arrays(path, partial(_wanted, path), largest)
        train, *test = (_from_arrays(path, x, y) for x, y in zip(parts[::2], parts[1::2], strict=True))
    return _floats(train, test[0] if test else None)


def from_csv(
    path: str | os.PathLike[str],
    label: str,
    test: str | os.PathLike[str] | None = None,
    encoding: str = "utf-8-sig",
) -> Arrays:
    """A table with a header: inputs (n, columns but `label`), labels of any text; divided unless `test` is given.

    encoding: UTF-8 with or without a mark at its beginning, unless another one is named.
    """
    columns, train = _read_csv(path, label, encoding)
    if test is None:
        return _floats(train, None)
    test_columns, held_out = _read_csv(test, label, encoding)
    if test_columns != columns:
        raise DataError(
            f"{test} has the columns {reprlib.repr(test_columns)}, not {reprlib.repr(columns)} as {path}; use the same "
            "header."
        )
    return _floats(train, held_out)


def from_dataset(train: Any, test: Any = None) -> Arrays:
    """Any map-style Dataset of (tensor, label), stacked in memory; divided unless `test` is given."""
    return _floats(_stack(train), None if test is None else _stack(test))


def _floats(train: Labelled, test: Labelled | None) -> Arrays:
    x, labels = train
    names = class_names(labels)
    y = numbered(labels, names)
    if test is None:
        held_out = every_fifth(y, names)
        return Arrays(x[~held_out], y[~held_out], x[held_out], y[held_out], names)
    test_x, test_labels = test
    if test_x.shape[1:] != x.shape[1:]:
        raise DataError(
            f"test inputs have shape {tuple(test_x.shape[1:])}, training inputs {tuple(x.shape[1:])}; "
            "both need the same."
        )
    return Arrays(x, y, test_x, numbered(test_labels, names), names)


def _inputs(x: Tensor, origin: object) -> Tensor:
    """float32 inputs, bytes scaled to [0, 1]; an error where a number is not finite."""
    if x.dtype == torch.uint8:
        return unit(x)
    x = x.to(torch.float32)
    wrong = (~x.flatten(1).isfinite()).any(1).nonzero().flatten() if x.ndim > 1 else (~x.isfinite()).nonzero()
    if len(wrong):
        raise DataError(
            f"{origin}: {len(wrong)} examples have inputs that are not finite, the first is number "
            f"{int(wrong[0])}; fill or drop them."
        )
    return x


def _wanted(path: str | os.PathLike[str], present: Sequence[str]) -> Sequence[str]:
    """The names of the arrays to read."""
    names = next((names for names in (*NPZ_DIVIDED, NPZ_WHOLE) if set(present) >= set(names)), None)
    if names is None:
        raise DataError(
            f"{path} has the arrays {reprlib.repr([*present])}; it needs {', '.join(NPZ_DIVIDED[0])}, or x and y."
        )
    return names


def _from_arrays(path: str | os.PathLike[str], x: Any, y: Any) -> Labelled:
    import numpy

    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "iuUS":
        raise DataError(
            f"{path}: labels have shape {y.shape} and type {y.dtype}; they need shape (n,), whole numbers or strings."
        )
    if x.ndim == 0 or len(x) != len(y) or x.size == 0:
        raise DataError(f"{path}: inputs have shape {x.shape} for {len(y)} labels; give one input for each label.")
    if x.dtype.kind not in "iufb":
        raise DataError(f"{path}: inputs have type {x.dtype}; they need to be numbers.")
    labels = y.tolist()
    if y.dtype.kind == "S":
        labels = [label.decode() for label in labels]
    with numpy.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
        native = x if x.dtype.name == "uint8" else x.astype("float32", copy=False)
    return _inputs(torch.from_numpy(native), path), labels


def _read_csv(path: str | os.PathLike[str], label: str, encoding: str) -> tuple[list[str], Labelled]:
    """The input columns' names, the inputs (n, columns) and the labels."""
    rows = read_rows(path, encoding)
    _, header = next(rows)
    place = column_of(path, label, header)
    columns = header[:place] + header[place + 1 :]
    values, labels = array("f"), []
    for line, row in rows:
        labels.append(row.pop(place).strip())
        if not labels[-1]:
            raise DataError(f"{path}, line {line}: the label {label!r} is empty; fill it or drop the line.")
        _read_numbers(path, line, row, columns, values)
    if not labels or not columns:
        raise DataError(
            f"{path} has {len(labels)} rows and {len(columns)} input columns; it needs at least one of each."
        )
    x = torch.frombuffer(values, dtype=torch.float32).view(len(labels), -1).clone()
    return columns, (_inputs(x, path), labels)


def _read_numbers(path: str | os.PathLike[str], line: int, row: list[str], columns: list[str], values: array) -> None:
    """Add the cells of a row to the values."""
    try:
        values.extend(map(float, row))
    except ValueError:
        cell, column = next(pair for pair in zip(row, columns, strict=True) if not _is_number(pair[0]))
        raise DataError(
            f"{path}, line {line}: {reprlib.repr(cell)} in column {reprlib.repr(column)} is not a number; "
            "encode it or drop the column."
        ) from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _stack(dataset: Any) -> Labelled:
    """Every item of a Dataset: inputs (n, ...) and labels."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(
            f"{type(dataset).__name__} cannot be indexed or has no length; give a map-style Dataset, such as a list of "
            "(tensor, label)."
        )
    inputs: list[Tensor] = []
    labels: list[str | int] = []
    for index in range(len(dataset)):
        x, y = _item(dataset[index], index)
        if inputs and x.shape != inputs[0].shape:
            raise DataError(
                f"item {index} has shape {tuple(x.shape)}, item 0 {tuple(inputs[0].shape)}; give all the same shape."
            )
        inputs.append(x)
        labels.append(y)
    if not inputs:
        raise DataError(f"the {type(dataset).__name__} is empty; give at least 3 examples per class.")
    return _inputs(torch.stack(inputs), type(dataset).__name__), labels


def _item(item: Any, index: int) -> tuple[Tensor, str | int]:
    try:
        x, y = item
        x = torch.as_tensor(x)
        label = y.decode() if isinstance(y, bytes) else y if isinstance(y, str) else operator.index(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"item {index} is not a (tensor, label) pair: {error}; let the dataset's transform make a tensor."
        ) from error
    if isinstance(label, int) and abs(label) >= 2**63:
        raise DataError(f"item {index} has a label of more than 64 bits; give whole numbers below 2^63, or text.")
    return x, label
