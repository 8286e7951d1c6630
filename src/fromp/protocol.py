"""What every method that holds past tasks by a penalty looks like to a training loop."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fromp.derivatives.model import device_of
from fromp.foundation.examples import TaskData
from fromp.foundation.inputs import Constant, Inputs
from fromp.foundation.state import State
from fromp.likelihoods import Likelihood


class Loss(NamedTuple):
    """The two terms whose sum a step descends, both scalars."""

    data: Tensor
    penalty: Tensor

    def descend(self, optimizer: torch.optim.Optimizer, clip: float | None = None) -> float:
        """One step down the sum; the norm of its gradient if that is clipped, else infinity."""
        optimizer.zero_grad()
        (self.data + self.penalty).backward()
        norm = math.inf
        if clip is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            norm = float(nn.utils.clip_grad_norm_(parameters, clip))
        optimizer.step()
        return norm

    def detach(self) -> "Loss":
        """Its values alone."""
        return Loss(self.data.detach(), self.penalty.detach())


@runtime_checkable
class Regulariser(Protocol):
    """A method that holds past tasks by a penalty: all that `TaskFree` and other training loops need."""

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""

    @property
    def likelihood(self) -> Likelihood:
        """What its outputs mean."""

    def penalty(self) -> Tensor:
        """What is added to the mean nll: a scalar, zero before the first task has ended.

        One that looks at the present minibatch takes it and its head, `penalty(x, head)`, and says so by an attribute
        `looks_at_minibatch = True`.
        """

    def end_task(self, data: TaskData, head: Sequence[int] | None = None) -> None:
        """Keep what is needed of this task; its data can be deleted afterwards."""

    def state_dict(self) -> State:
        """Everything kept of the past, as nested dicts and lists of tensors and JSON values."""

    def load_state_dict(self, state: State) -> None:
        """Return to a state that `state_dict` gave, on the model's device."""


def penalty_at(
    regulariser: Regulariser, x: Callable[[], Inputs], head: Sequence[int] | None = None, **keywords: Constant
) -> Tensor:
    """The penalty of a step: at the minibatch that `x` gives, trained on a head, if the regulariser looks at it.

    keywords: further arguments of the model's forward, such as task="b".
    """
    at: Any = regulariser.penalty
    return at(x(), head, **keywords) if getattr(regulariser, "looks_at_minibatch", False) else at()


def no_penalty(model: nn.Module) -> Tensor:
    """Zero, on the model's device, that can be descended: the penalty before any task has ended."""
    return torch.zeros((), device=device_of(model), requires_grad=True)
