"""Arguments of a model beside its inputs, such as a task's name: `end_task(x, y, task="b")`."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, final

from torch import Tensor, nn

from fromp.derivatives.model import bare, forward_of
from fromp.foundation.arrays import describe, is_array
from fromp.foundation.errors import DataError
from fromp.foundation.examples import Batch, Examples
from fromp.foundation.inputs import Constant, Inputs, is_constant

Keywords: TypeAlias = Mapping[str, Constant]


@final
class WithKeywords(Examples):
    """Examples with arguments of the model that hold for all of them."""

    def __init__(self, examples: Examples, model: nn.Module, keywords: Keywords) -> None:
        self._examples, self._model, self._keywords = examples, model, keywords
        self.weight = examples.weight
        self.indices: Tensor | None = getattr(examples, "indices", None)

    def __len__(self) -> int:
        return len(self._examples)

    def take(self, indices: Tensor) -> Batch:
        return self._named(self._examples.take(indices))

    def batches(self, size: int) -> Iterator[Batch]:
        return map(self._named, self._examples.batches(size))

    def _named(self, batch: Batch) -> Batch:
        x, y = batch
        return with_keywords(self._model, x, self._keywords), y


def checked_keywords(model: nn.Module, call: str, given: Mapping[str, Any]) -> Keywords:
    """The arguments as constants, with an error unless the model's forward has such arguments."""
    if not given:
        return {}
    known = inspect.signature(forward_of(model)).parameters.values()
    names = [one.name for one in known if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    for name, value in given.items():
        if name not in names and not any(one.kind == one.VAR_KEYWORD for one in known):
            raise DataError(
                f"neither {call} nor the model's forward takes '{name}'; {type(bare(model)).__name__}.forward takes "
                f"{', '.join(names) or 'no names'}."
            )
        if not (is_constant(value) or _is_scalar(value)):
            raise DataError(
                f"{name} is {describe(value)}; give a number, a text or None, which holds for every example, and "
                "tensors with one row for each example among the inputs."
            )
    return {name: value.item() if _is_scalar(value) else value for name, value in given.items()}


def with_keywords(model: nn.Module, x: Inputs, keywords: Keywords) -> Inputs:
    """Inputs and arguments as one dict, by the names that the model's forward has for them."""
    if not keywords:
        return x
    if isinstance(x, Mapping):
        named: Mapping[str, Inputs] = x
    else:
        signature = inspect.signature(forward_of(model))
        try:
            named = signature.bind_partial(*((x,) if isinstance(x, Tensor) else x)).arguments  # type: ignore[misc]
        except TypeError as error:
            raise DataError(f"the model's forward{signature} cannot take these inputs: {error}.") from error
        if unnamed := [
            name for name in named if signature.parameters[name].kind != inspect.Parameter.POSITIONAL_OR_KEYWORD
        ]:
            raise DataError(
                f"the model's forward{signature} has no name for its inputs ('{unnamed[0]}'), which they need beside "
                f"{', '.join(keywords)}; give them in a dict, by name."
            )
    if twice := keywords.keys() & named.keys():
        raise DataError(f"{sorted(twice)[0]} was given twice, among the inputs and by name; give it once.")
    return {**named, **keywords}


def _is_scalar(value: object) -> bool:
    """Whether it is a single number of torch or numpy."""
    return (isinstance(value, Tensor) or is_array(value)) and getattr(value, "ndim", None) == 0
