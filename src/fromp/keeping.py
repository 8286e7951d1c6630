"""What is kept in the place of an input, such as the features that a frozen trunk makes of it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from fromp.derivatives.model import evaluating
from fromp.foundation import inputs
from fromp.foundation.errors import CheckpointError, DataError, FrompError
from fromp.foundation.examples import Batch, Examples
from fromp.foundation.inputs import Inputs
from fromp.foundation.state import State, field

Transform: TypeAlias = Callable[..., Inputs]

PIECE = 256  # examples that go through a transform at once, so that its activations stay small
CLOSE = 1e-6  # share of a tensor's norm that the order of a sum may change


@final
class Keep:
    """x -> transform(x) for all that is computed on data, or x itself without one.

    A module works in evaluation mode and without gradient. Its weights have to stay as they are from the first task
    on: the model is held at what it made of the inputs then.
    """

    def __init__(self, transform: Transform | None) -> None:
        if transform is not None and not callable(transform):
            raise FrompError(f"keep={transform!r} cannot be called; give a module or a function of the inputs.")
        self.transform = transform
        self._module = transform if isinstance(transform, nn.Module) else None
        named = self._module.named_parameters() if self._module else ()
        if trained := [name for name, parameter in named if parameter.requires_grad]:
            raise FrompError(
                f"keep has {len(trained)} parameters that training may change, such as '{trained[0]}', and what is "
                "kept would no longer be what it gives; freeze it with keep.requires_grad_(False)."
            )

    def __call__(self, x: Inputs, device: torch.device) -> Inputs:
        """What is kept in the place of x, on the device."""
        if self.transform is None:
            return x
        x = inputs.move(x, device)
        with torch.no_grad(), nullcontext() if self._module is None else evaluating(self._module):
            made = self.transform(**x) if isinstance(x, Mapping) else self.transform(*_arguments(x))
        if inputs.num_examples(made) != inputs.num_examples(x):
            raise DataError(
                f"keep made {inputs.num_examples(made)} examples of {inputs.num_examples(x)}; it must give one for "
                "each, along the first axis."
            )
        return made

    def of(self, examples: Examples, device: torch.device) -> Examples:
        """The examples with what is kept in the place of their inputs."""
        return examples if self.transform is None else KeptExamples(examples, self, device)

    def record(self) -> State:
        """Whether there is a transform, and the mean and norm of what it consists of, to recognise it by."""
        found = {} if self._module is None else self._module.state_dict()
        parts = {name: value for name, value in found.items() if isinstance(value, Tensor) and value.numel()}
        numbers = {name: value.double() for name, value in parts.items()}
        return {
            "given": self.transform is not None,
            "weights": {name: [float(value.mean()), float(value.norm())] for name, value in numbers.items()},
        }

    def check(self, before: Any) -> None:
        """An error unless the memory was made by this very transform, as far as `record` can tell."""
        now, given, weights = self.record(), field(before, "given", bool), field(before, "weights", dict)
        if given and not now["given"]:
            raise CheckpointError(
                "the memory holds what a transform made of the inputs; give it again, as in load(..., keep=trunk)."
            )
        if now["given"] and not given:
            raise CheckpointError(
                "the memory holds inputs as they came, without a transform; leave out keep, or start anew with it."
            )
        names = weights.keys() ^ now["weights"].keys()
        if changed := sorted(names) or [name for name in weights if not _same(weights[name], now["weights"][name])]:
            raise CheckpointError(
                f"keep is not what the memory was made with: '{changed[0]}' differs. Give it the weights and the "
                "statistics that it had then, and train it no further."
            )


@final
class KeptExamples(Examples):
    """Examples with what is kept in the place of their inputs, made anew whenever it is asked for."""

    def __init__(self, examples: Examples, keep: Keep, device: torch.device) -> None:
        self._examples, self._keep, self._device = examples, keep, device
        self.weight = examples.weight

    def __len__(self) -> int:
        return len(self._examples)

    def take(self, indices: Tensor) -> Batch:
        made, labels = zip(*(self._made(self._examples.take(some)) for some in indices.split(PIECE)), strict=True)
        return inputs.concatenate(made), torch.cat(labels)

    def batches(self, size: int) -> Iterator[Batch]:
        return map(self._made, self._examples.batches(min(size, PIECE)))

    def _made(self, batch: Batch) -> Batch:
        x, y = batch
        inputs.check_finite(x)
        return self._keep(x, self._device), y


def _arguments(x: Inputs) -> Any:
    return (x,) if isinstance(x, Tensor) else x


def _same(one: Any, other: list[float]) -> bool:
    scale = abs(other[1]) + torch.finfo(torch.float32).tiny
    return (
        isinstance(one, list)
        and len(one) == 2
        and all(isinstance(a, float) and abs(a - b) <= CLOSE * scale for a, b in zip(one, other, strict=True))
    )
