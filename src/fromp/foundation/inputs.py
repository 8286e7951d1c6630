"""A model's inputs: a tensor, or a tuple, list or dict of inputs, with examples along the first axis.

Beside tensors there may be constants, such as the name of a task: they hold for every example.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from fromp.foundation.arrays import describe
from fromp.foundation.errors import DataError

Constant: TypeAlias = str | int | float | bool | None
Inputs: TypeAlias = "Tensor | Constant | Sequence[Inputs] | Mapping[str, Inputs]"


def tensors(x: Inputs) -> Iterator[Tensor]:
    """Every tensor of the inputs, in a fixed order."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, Mapping):
        for key in sorted(x):
            yield from tensors(x[key])
    elif not is_constant(x):
        for part in _parts(x):
            yield from tensors(part)


def replace(x: Inputs, parts: Iterator[Tensor]) -> Inputs:
    """The same inputs with other tensors, in the order of `tensors`."""
    if isinstance(x, Tensor):
        return next(parts)
    if isinstance(x, Mapping):
        done = {key: replace(x[key], parts) for key in sorted(x)}
        return {key: done[key] for key in x}
    return x if is_constant(x) else tuple(replace(part, parts) for part in _parts(x))


def transform(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """The same inputs with `function` applied to every tensor."""
    return replace(x, map(function, tensors(x)))


def is_constant(x: object) -> TypeGuard[Constant]:
    """Whether it is a number, a text or None, which holds for every example."""
    return x is None or isinstance(x, str | int | float)


def constants(x: Inputs) -> dict[str, Constant]:
    """What holds for every example, by name: {} but for a dict that has some."""
    return {name: part for name, part in x.items() if is_constant(part)} if isinstance(x, Mapping) else {}


def num_examples(x: Inputs) -> int:
    """How many examples the inputs hold; an error if the parts disagree, or if some hold constants alone."""
    _check_constants(x)
    sizes = {len(part) if part.ndim else 0 for part in tensors(x)}
    if len(sizes) != 1:
        raise DataError(
            f"the parts of the inputs hold {sorted(sizes)} examples; every tensor needs the same first axis."
        )
    return sizes.pop()


def take(x: Inputs, indices: Tensor | slice) -> Inputs:
    """The examples at `indices`."""
    return transform(lambda part: _rows(part, indices), x)


def concatenate(parts: Sequence[Inputs]) -> Inputs:
    """One batch out of several."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    if isinstance(first, Mapping):
        return {key: concatenate([part[key] for part in parts]) for key in first}  # type: ignore[call-overload,index]
    if is_constant(first):
        return first
    return tuple(concatenate(list(column)) for column in zip(*parts, strict=True))


def signature(x: Inputs) -> tuple:
    """What must agree for inputs to be concatenated: structure, dtypes, all axes but the first, and constants."""
    if isinstance(x, Tensor):
        return (x.dtype, tuple(x.shape[1:]))
    if isinstance(x, Mapping):
        return tuple((key, signature(part)) for key, part in sorted(x.items()))
    return (type(x), x) if is_constant(x) else tuple(signature(part) for part in _parts(x))


def move(x: Inputs, device: torch.device) -> Inputs:
    """The same inputs on `device`."""
    return transform(lambda part: part.to(device), x)


def split(x: Inputs, size: int) -> Iterator[Inputs]:
    """The inputs `size` examples at a time."""
    for start in range(0, num_examples(x), size):
        yield take(x, slice(start, start + size))


def check_finite(x: Inputs, start: int = 0) -> None:
    """An error if an input is not finite; the first of them is number `start`."""
    for part in tensors(x):
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            wrong = (~torch.isfinite(part).reshape(len(part), -1).all(1)).nonzero().flatten()
            raise DataError(
                f"input {start + int(wrong[0])} holds NaN or infinity ({len(wrong)} such inputs in this batch); "
                "remove or repair those examples."
            )


def _parts(x: Any) -> Sequence[Inputs]:
    if not isinstance(x, Sequence):
        raise DataError(
            f"inputs of type {type(x).__name__} are not supported; give a tensor, or a tuple or dict of tensors, "
            "beside which there may be numbers, text and None."
        )
    return x


def _check_constants(x: Inputs) -> None:
    """An error if a list or dict holds no tensor: one text for each example is no constant."""
    if isinstance(x, Tensor):
        return
    if is_constant(x) or next(tensors(x), None) is None:
        raise DataError(
            f"the inputs hold no tensor in {describe(x)}; give numbers as tensors (text has to be encoded first), and "
            "what holds for every example, such as a task's name, once: end_task(data, task='b')."
        )
    for part in x.values() if isinstance(x, Mapping) else _parts(x):
        if not is_constant(part):
            _check_constants(part)


def _rows(part: Tensor, indices: Tensor | slice) -> Tensor:
    """part[indices], several times faster for whole numbers; `index_select` would undo channels_last."""
    if isinstance(indices, Tensor) and indices.ndim == 1 and indices.dtype == torch.long and part.is_contiguous():
        return part.index_select(0, indices)
    return part[indices]
