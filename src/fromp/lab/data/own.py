"""One's own examples from an .npz file, a CSV file or any map-style Dataset."""

import csv
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fromp.foundation.errors import DataError, install
from fromp.lab.data.arrays import Arrays, class_names, every_fifth, numbered, unit

NPZ_DIVIDED = (("train_x", "train_y", "test_x", "test_y"), ("x_train", "y_train", "x_test", "y_test"))

Labelled = tuple[Tensor, Sequence[str | int]]


def from_npz(path: str | os.PathLike[str]) -> Arrays:
    """Arrays train_x, train_y, test_x, test_y (or x_train, ...), or x and y to be divided; bytes become [0, 1]."""
    try:
        import numpy
    except ImportError as error:
        raise ImportError(f"an .npz file needs numpy; {install('lab')}.") from error
    try:
        with numpy.load(path, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
    except FileNotFoundError:
        raise
    except Exception as error:
        raise DataError(
            f"{path} cannot be read as .npz: {error}; save plain arrays of numbers or strings with numpy.savez."
        ) from error
    for names in NPZ_DIVIDED:
        if arrays.keys() >= set(names):
            train_x, train_y, test_x, test_y = (arrays[name] for name in names)
            return _floats(_from_arrays(path, train_x, train_y), _from_arrays(path, test_x, test_y))
    if arrays.keys() >= {"x", "y"}:
        return _floats(_from_arrays(path, arrays["x"], arrays["y"]), None)
    raise DataError(f"{path} has the arrays {sorted(arrays)}; it needs {', '.join(NPZ_DIVIDED[0])}, or x and y.")


def from_csv(path: str | os.PathLike[str], label: str, test: str | os.PathLike[str] | None = None) -> Arrays:
    """A table with a header: inputs (n, columns but `label`), labels of any text; divided unless `test` is given."""
    columns, train = _read_csv(Path(path), label)
    if test is None:
        return _floats(train, None)
    test_columns, held_out = _read_csv(Path(test), label)
    if test_columns != columns:
        raise DataError(f"{test} has the columns {test_columns}, not {columns} as {path}; use the same header.")
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


def _from_arrays(path: str | os.PathLike[str], x: Any, y: Any) -> Labelled:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "iuUS":
        raise DataError(
            f"{path}: labels have shape {y.shape} and type {y.dtype}; they need shape (n,), whole numbers or strings."
        )
    if x.ndim == 0 or len(x) != len(y) or len(y) == 0:
        raise DataError(f"{path}: inputs have shape {x.shape} for {len(y)} labels; give one input for each label.")
    if x.dtype.kind not in "iufb":
        raise DataError(f"{path}: inputs have type {x.dtype}; they need to be numbers.")
    if y.dtype.kind == "S":
        y = y.astype("U")
    native = x if x.dtype.name == "uint8" else x.astype("float32")
    return _inputs(torch.from_numpy(native.copy()), path), y.tolist()


def _read_csv(path: Path, label: str) -> tuple[list[str], Labelled]:
    """The input columns' names, the inputs (n, columns) and the labels."""
    values, labels = array("f"), []
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        if header.count(label) != 1:
            raise DataError(f"{path} has {header.count(label)} columns {label!r}; its columns are {header[:20]}.")
        place = header.index(label)
        columns = header[:place] + header[place + 1 :]
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(f"{path}, line {rows.line_num}: {len(row)} cells, but the header has {len(header)}.")
            labels.append(row.pop(place).strip())
            if not labels[-1]:
                raise DataError(
                    f"{path}, line {rows.line_num}: the label {label!r} is empty; fill it or drop the line."
                )
            try:
                values.extend(map(float, row))
            except (ValueError, OverflowError):
                raise _wrong_cell(path, rows.line_num, columns, row) from None
    if not labels or not columns:
        raise DataError(
            f"{path} has {len(labels)} rows and {len(columns)} input columns; it needs at least one of each."
        )
    x = torch.frombuffer(values, dtype=torch.float32).view(len(labels), -1).clone()
    return columns, (_inputs(x, path), labels)


def _wrong_cell(path: Path, line: int, columns: list[str], row: list[str]) -> DataError:
    for column, cell in zip(columns, row, strict=True):
        try:
            float(cell)
        except ValueError:
            return DataError(
                f"{path}, line {line}: {cell!r} in column {column!r} is not a number; encode it or drop the column."
            )
    return DataError(f"{path}, line {line}: a number is too large for float32; rescale it.")


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
        raise DataError(f"the {type(dataset).__name__} is empty; give at least 3 examples a class.")
    return _inputs(torch.stack(inputs), type(dataset).__name__), labels


def _item(item: Any, index: int) -> tuple[Tensor, str | int]:
    try:
        x, y = item
        x = torch.as_tensor(x)
        label = y if isinstance(y, str) else int(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"item {index} is not a (tensor, label) pair: {error}; let the dataset's transform make a tensor."
        ) from error
    return x, label
