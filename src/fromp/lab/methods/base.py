"""What a method of continual learning adds to plain training. The trainer knows nothing else of it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Head, of_head, outputs, outputs_of_parts
from fromp.foundation.examples import Examples, TaskData
from fromp.foundation.inputs import Inputs
from fromp.foundation.state import State
from fromp.lab.benchmarks.training import Training
from fromp.likelihoods import Likelihood
from fromp.memory import Memory
from fromp.protocol import Loss, Regulariser, no_penalty

HeadBatch = tuple[Inputs, Tensor, Head]  # examples of one head
TrainingSets = Sequence[tuple[Examples, Head]]  # examples, and the head that each set of them belongs to

TEST_SAMPLES = 20  # samples that a test averages over, for methods that predict with a distribution


class Method(ABC):
    """A model, its likelihood, and what is kept of the past."""

    # Whether the first task is learned by plain training, so that runs of several methods may share it.
    starts_plain: bool = False

    def __init__(self, model: nn.Module, likelihood: Likelihood) -> None:
        self.model, self.likelihood = model, likelihood
        self._memories: list[Memory] = []

    @property
    def memories(self) -> Sequence[Memory]:
        """What is kept of each past task's examples, if anything is."""
        return self._memories

    def parameters(self) -> list[Tensor]:
        """What a step changes: the model's trainable weights, unless overridden."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def optimizer(self, training: Training) -> torch.optim.Optimizer:
        """What takes the steps of the task that has begun: Adam, unless overridden."""
        return training.optimizer(self.parameters())

    def begin_task(self, examples: Examples, head: Head, past: TrainingSets) -> TrainingSets:
        """Called before a task's first step; returns what to train on: the task alone, unless overridden.

        If it returns nothing, no step is taken, and the task has no row of accuracies.
        `past` holds the data of all earlier tasks, for methods that are meant to cheat. A run that is taken up
        in the middle of a task calls this again, restored: what it returns may depend on the finished tasks only.
        """
        return [(examples, head)]

    def loss(self, batch: Sequence[HeadBatch]) -> Loss:
        """What a step descends: the mean nll of the batch, and the penalty."""
        return Loss(self.data_loss(batch), self.penalty())

    def data_loss(self, batch: Sequence[HeadBatch]) -> Tensor:
        """The mean nll of a batch, whose parts may belong to different heads."""
        return mean_nll(self.model, self.likelihood, batch)

    def penalty(self) -> Tensor:
        """The penalty that holds past tasks: a scalar, zero before the first task has ended."""
        return no_penalty(self.model)

    def after_step(self) -> None:
        """Called after each optimizer step."""
        return

    @abstractmethod
    def end_task(self, data: TaskData, head: Sequence[int] | None = None) -> None:
        """Keep what is needed of this task; its data can be deleted afterwards."""

    def predict_outputs(self, x: Inputs, head: Head, task: int) -> Tensor:
        """The outputs used to test on a task: (b, c)."""
        return outputs(self.model, x, head)

    @abstractmethod
    def state_dict(self) -> State:
        """Everything kept of the past, as nested dicts and lists of tensors and JSON values."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Return to a state that `state_dict` gave, on the model's device."""


class Penalised(Method):
    """mean nll + regulariser.penalty(): every method that is only a penalty, and so may run task-free."""

    starts_plain = True

    def __init__(self, regulariser: Regulariser) -> None:
        super().__init__(regulariser.model, regulariser.likelihood)
        self.regulariser = regulariser

    @property
    def memories(self) -> Sequence[Memory]:
        return getattr(self.regulariser, "memories", ())

    def penalty(self) -> Tensor:
        return self.regulariser.penalty()

    def end_task(self, data: TaskData, head: Sequence[int] | None = None) -> None:
        self.regulariser.end_task(data, head)

    def state_dict(self) -> State:
        return self.regulariser.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.regulariser.load_state_dict(state)


def mean_nll(model: nn.Module, likelihood: Likelihood, batch: Sequence[HeadBatch]) -> Tensor:
    """The mean nll of a batch, whose parts may belong to different heads: a scalar."""
    found = zip(outputs_of_heads(model, batch), batch, strict=True)
    return torch.cat([likelihood.nll(f, y) for f, (_, y, _) in found]).mean()


def outputs_of_heads(model: nn.Module, batch: Sequence[HeadBatch]) -> list[Tensor]:
    """f of each part, of all in one pass where their inputs go together: batch norm is to see a batch as a whole."""
    every = outputs_of_parts(model, [x for x, _, _ in batch])
    return [of_head(f, head) for f, (_, _, head) in zip(every, batch, strict=True)]


def by_set(chosen: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Indices into several sets laid end to end, as indices into each of them."""
    parts, first = [], 0
    for size in sizes:
        parts.append(chosen[(chosen >= first) & (chosen < first + size)] - first)
        first += size
    return parts
