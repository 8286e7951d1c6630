"""Typed settings: frozen, keyword-only, checked against their bounds, each with its meaning below it."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any, NamedTuple, TypeVar, dataclass_transform

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from fromp.foundation.errors import FrompError

T = TypeVar("T")

AtLeastOne = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Listed = BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value)  # as in hidden=100,100


@dataclass_transform(kw_only_default=True, frozen_default=True)
def settings(cls: type[T]) -> type[T]:
    """A class of settings; what stands below an attribute is its description."""
    config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    return dataclass(cls, frozen=True, kw_only=True, config=config)  # type: ignore[return-value]


def names(part: Any) -> tuple[str, ...]:
    """The settings of an object or a class; none if it has no fields."""
    return tuple(field.name for field in fields(part)) if is_dataclass(part) else ()


class Described(NamedTuple):
    """A setting as a person reads it."""

    name: str
    meaning: str
    default: str  # empty if there is none


def described(part: Any) -> list[Described]:
    """Every setting of a class of settings."""
    own: dict[str, Any] = getattr(part, "__pydantic_fields__", {})
    bases = [getattr(base, "__pydantic_fields__", {}) for base in part.__mro__]  # only the first has the description
    meanings = {name: f.description for fields in bases for name, f in fields.items() if f.description}
    return [Described(n, meanings.get(n, ""), "" if f.is_required() else as_text(f.default)) for n, f in own.items()]


def changed(part: T, changes: Mapping[str, Any]) -> T:
    """The same settings with those of `changes` that it has; text is read as the type that each one has."""
    own = {name: changes[name] for name in names(part) if name in changes}
    return checked(lambda: replace(part, **own)) if own else part  # type: ignore[type-var]


def checked(make: Any) -> Any:
    """What `make` makes, with pydantic's error as one that names the setting, its value and its limit."""
    try:
        return make()
    except ValidationError as error:
        found = error.errors()[0]
        name, value = found["loc"][0], found["input"]
        if found["type"] == "missing":
            raise FrompError(f"{name} has no value here; give it one with --set {name}=VALUE.") from error
        limit = found["msg"].removeprefix("Input should be ").replace("greater than or equal to", "at least")
        raise FrompError(f"{name} must be {limit} (got {as_text(value)}).") from error


def require_known(role: str, name: str, known: Collection[str]) -> None:
    """An error that names the nearest known name, unless `name` is one."""
    if name not in known:
        near = nearest(name, known)
        raise FrompError(
            f"unknown {role} '{name}'{f'; did you mean {near!r}?' if near else '.'} Known: {', '.join(known)}."
        )


def nearest(name: str, known: Collection[str], cutoff: float = 0.4) -> str | None:
    """The known name that is most like another, if any is."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def as_text(value: Any) -> str:
    """A setting's value as one would write it."""
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(as_text, value)) if isinstance(value, list | tuple) else str(value)
