"""What a method of continual learning adds to plain training. The trainer knows nothing else of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Head, device_of, of_head, outputs
from fromp.foundation import inputs
from fromp.foundation.examples import Examples
from fromp.foundation.inputs import Inputs
from fromp.gp import ggn_diagonal
from fromp.likelihoods import Likelihood
from fromp.memory import Memory

HeadBatch = tuple[Inputs, Tensor, Head]  # examples of one head
TrainingSets = Sequence[tuple[Examples, Head]]  # examples, and the head that each set of them belongs to

TEST_SAMPLES = 20  # that a test averages over, of methods which predict with a distribution


class Loss(NamedTuple):
    """The two things that a step descends the sum of, both scalars."""

    data: Tensor
    penalty: Tensor


class Method(ABC):
    """A model, its likelihood, and whatever is kept of the past."""

    # Before any task has ended there is nothing to hold on to: most methods then train like any other.
    first_task_is_plain: bool = True
    # Whether the accuracy after each task says something, and with it what is gained and lost between tasks.
    trains_every_task: bool = True
    # What it writes down at each step, by how its names in `state` begin: a plain first task that another run has
    # trained can be taken from it only with these.
    records: ClassVar[tuple[str, ...]] = ()

    def __init__(self, model: nn.Module, likelihood: Likelihood) -> None:
        self.model, self.likelihood = model, likelihood
        self.memories: list[Memory] = []
        self.curvature: Callable[..., dict[str, Tensor]] = ggn_diagonal  # or a look-up, where it is known already

    def parameters(self) -> list[Tensor]:
        """What a step changes: the model's trainable weights, unless overridden."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def begin_task(self, examples: Examples, head: Head, past: TrainingSets) -> TrainingSets:
        """Called before a task's first step; returns what to train on: the task alone, unless overridden.

        `past` holds the data of all earlier tasks, for methods that are meant to cheat. A run that is taken up
        in the middle of a task calls this again, restored: what it returns may depend on the finished tasks only.
        """
        return [(examples, head)]

    def loss(self, batch: Sequence[HeadBatch]) -> Loss:
        """What a step descends: the mean nll of the batch, and the penalty."""
        return Loss(self.data_loss(batch), self.penalty())

    def data_loss(self, batch: Sequence[HeadBatch]) -> Tensor:
        """The mean nll of a batch, whose parts may belong to different heads."""
        found = zip(outputs_of_parts(self.model, batch), batch, strict=True)
        return torch.cat([self.likelihood.nll(f, y) for f, (_, y, _) in found]).mean()

    def penalty(self) -> Tensor:
        """What holds on to the past: a scalar, zero before the first task has ended."""
        device = device_of(self.model)
        return torch.zeros((), device=device, requires_grad=True)

    def after_step(self) -> None:
        """Called after each optimiser step."""
        return

    @abstractmethod
    def end_task(self, data: Any, head: Sequence[int] | None = None) -> None:
        """Keep what will be needed of this task, before its data goes."""

    def predict_outputs(self, x: Inputs, head: Head, task: int) -> Tensor:
        """The outputs used to test on a task: (b, c)."""
        return outputs(self.model, x, head)

    @abstractmethod
    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything kept of the past, as tensors and as JSON values; `restore` takes it back."""

    @abstractmethod
    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Return to a state that `state` gave; its tensors may be on another device: see `here`."""

    def here(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a state on the model's device; one named "generator" is a random state, which has none."""
        device = device_of(self.model)
        return {name: t if name == "generator" else t.to(device) for name, t in tensors.items()}


def outputs_of_parts(model: nn.Module, batch: Sequence[HeadBatch]) -> list[Tensor]:
    """f of each part, of all in one pass where their inputs go together: batch norm is to see a batch as a whole."""
    parts = [x for x, _, _ in batch]
    if len(parts) == 1 or len(set(map(inputs.signature, parts))) > 1:
        return [outputs(model, x, head) for x, _, head in batch]
    every = outputs(model, inputs.concatenate(parts)).split([len(y) for _, y, _ in batch])
    return [of_head(f, head) for f, (_, _, head) in zip(every, batch, strict=True)]


def by_set(chosen: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Indices into several sets laid end to end, as indices into each of them."""
    parts, first = [], 0
    for size in sizes:
        parts.append(chosen[(chosen >= first) & (chosen < first + size)] - first)
        first += size
    return parts


def under(tensors: dict[str, Tensor], mark: str) -> dict[str, Tensor]:
    """The tensors whose name begins with `mark`, by the rest of it."""
    return {name.removeprefix(mark): value for name, value in tensors.items() if name.startswith(mark)}
