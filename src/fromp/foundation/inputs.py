"""A model's inputs: a tensor, or a tuple, list or dict of inputs, with examples along the first axis."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fromp.foundation.errors import DataError

Inputs: TypeAlias = "Tensor | Sequence[Inputs] | Mapping[str, Inputs]"


def tensors(x: Inputs) -> Iterator[Tensor]:
    """Every tensor of the inputs, in a fixed order."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, Mapping):
        for key in sorted(x):
            yield from tensors(x[key])
    else:
        _check_sequence(x)
        for part in x:
            yield from tensors(part)


def transform(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """The same inputs with `function` applied to every tensor."""
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, Mapping):
        return {key: transform(function, part) for key, part in x.items()}
    _check_sequence(x)
    return tuple(transform(function, part) for part in x)


def num_examples(x: Inputs) -> int:
    """How many examples the inputs hold; an error if the parts disagree."""
    sizes = {len(part) if part.ndim else 0 for part in tensors(x)}
    if len(sizes) != 1:
        raise DataError(
            f"the parts of the inputs hold {sorted(sizes)} examples; every tensor needs the same first axis."
        )
    return sizes.pop()


def take(x: Inputs, indices: Tensor | slice) -> Inputs:
    """The examples at `indices`."""
    return transform(lambda part: part[indices], x)


def concatenate(parts: Sequence[Inputs]) -> Inputs:
    """One batch out of several."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    if isinstance(first, Mapping):
        return {key: concatenate([part[key] for part in parts]) for key in first}  # type: ignore[call-overload,index]
    return tuple(concatenate(list(column)) for column in zip(*parts, strict=True))


def signature(x: Inputs) -> tuple:
    """What must agree for inputs to be concatenated: structure, dtypes, and all axes but the first."""
    if isinstance(x, Tensor):
        return (x.dtype, tuple(x.shape[1:]))
    if isinstance(x, Mapping):
        return tuple((key, signature(part)) for key, part in sorted(x.items()))
    return tuple(signature(part) for part in x)


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


def _check_sequence(x: Any) -> None:
    if not isinstance(x, Sequence) or isinstance(x, str):
        raise DataError(
            f"inputs of type {type(x).__name__} are not supported; give a tensor, or a tuple or dict of tensors."
        )
