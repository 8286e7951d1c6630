"""Numbers however they are given, as tensors: arrays of other libraries and Python lists."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from fromp.foundation.errors import DataError


class Array(Protocol):
    """An array of another library, such as numpy or pandas."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """Its numbers as a numpy array."""


Numbers: TypeAlias = Tensor | Array | list[Any] | tuple[Any, ...]


def is_array(value: object) -> bool:
    """Whether it is an array of another library, which need not be installed."""
    return hasattr(value, "__array__") and not isinstance(value, Tensor | type)


def is_numbers(value: object) -> bool:
    """Whether it is a list of numbers, or of such lists."""
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(part, int | float) for part in value) or all(map(is_numbers, value))


def as_tensors(x: Any, floats: torch.dtype | None = None) -> Any:
    """The same inputs, with arrays and lists of numbers as tensors.

    What is a tensor already stays as it is, or is copied if it was made under `torch.inference_mode`, which autograd
    does not take. Floating-point numbers of arrays and lists become `floats`, because numpy and Python know only double
    precision unless told otherwise.
    """
    if isinstance(x, Mapping):
        return {key: as_tensors(part, floats) for key, part in x.items()}
    if isinstance(x, Tensor):
        return x.clone() if x.is_inference() else x
    if is_array(x) or (isinstance(x, list) and is_numbers(x)):
        return as_tensor(x, floats)
    if isinstance(x, list | tuple):
        return tuple(as_tensors(part, floats) for part in x)
    return x


def as_tensor(value: Any, floats: torch.dtype | None = None) -> Tensor:
    """An array or a list of numbers as a tensor."""
    try:
        found = _read(value.__array__()) if is_array(value) else torch.tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{describe(value)} cannot be read as numbers: {error}") from error
    return found.to(floats or torch.get_default_dtype()) if found.is_floating_point() else found


def describe(value: object) -> str:
    """What it is, in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if is_array(value):
        return f"a {type(value).__name__} of shape {getattr(value, 'shape', '?')}"
    if isinstance(value, Mapping):
        names = ", ".join(repr(name) for name in list(value)[:5]) + (", ..." if len(value) > 5 else "")
        return f"a {type(value).__name__} with {names}" if names else f"an empty {type(value).__name__}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if value is None or isinstance(value, int | float | str):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"an {name}" if (name := type(value).__name__)[0] in "AEIOaeio" else f"a {name}"


def _read(array: Any) -> Tensor:
    """A numpy array as a tensor that shares its memory, or as a copy where torch can only read one."""
    plain = array.flags.writeable and array.dtype.isnative and all(step >= 0 for step in array.strides)
    return torch.from_numpy(array if plain else array.astype(array.dtype.newbyteorder("="), order="C"))
