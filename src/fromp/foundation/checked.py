"""Settings that are checked whenever they are set, so that nothing is saved which cannot be loaded."""

import math
import operator
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from fromp.foundation.errors import FrompError

T = TypeVar("T")

LARGEST = 1e15  # of a number: what is multiplied by it must fit into single precision


class Setting(Generic[T]):
    """An attribute whose values go through `check(name, value)`, which returns them or raises."""

    def __init__(self, check: Callable[[str, Any], T]) -> None:
        self._check = check

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "Setting[T]": ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> "Setting[T] | T":
        return self if instance is None else instance.__dict__[self._name]

    def __set__(self, instance: object, value: T) -> None:
        instance.__dict__[self._name] = self._check(self._name, value)


def number(name: str, value: Any) -> float:
    """A number from zero to `LARGEST`."""
    found = _float(value)
    if not 0 <= found <= LARGEST:
        raise FrompError(f"{name}={value} must be zero or positive, and at most {LARGEST:g}.")
    return found


def number_or_none(name: str, value: Any) -> float | None:
    """A number from zero to `LARGEST`, or None."""
    return None if value is None else number(name, value)


def positive(name: str, value: Any) -> float:
    """A number above zero, up to `LARGEST`."""
    found = _float(value)
    if not 0 < found <= LARGEST:
        raise FrompError(f"{name}={value} must be positive, and at most {LARGEST:g}.")
    return found


def count(name: str, value: Any) -> int:
    """A whole number of at least 1."""
    try:
        found = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = 0
    if found < 1:
        raise FrompError(f"{name}={value} must be a whole number of at least 1.")
    return found


def count_or_none(name: str, value: Any) -> int | None:
    """A whole number of at least 1, or None."""
    return None if value is None else count(name, value)


def _float(value: Any) -> float:
    try:
        return math.nan if isinstance(value, str | bool) else float(value)
    except (TypeError, ValueError, RuntimeError):
        return math.nan
