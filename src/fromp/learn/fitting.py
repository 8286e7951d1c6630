"""Training for one month, and the choice of its length and of tau on a part of the month that is held out."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from fromp.derivatives.model import evaluating, outputs
from fromp.foundation.errors import FrompError
from fromp.foundation.inputs import Inputs, split
from fromp.foundation.state import State
from fromp.likelihoods import Likelihood
from fromp.memory import Memory

LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-4
LENGTHS = (5, 15, 45, 135)  # epochs, tried in this order while the held-out loss falls
STRENGTHS = (0.1, 1.0, 10.0)
TEST_BATCH = 1024
Watch = Callable[[str, float], None]  # what is done, and which share of it is done


class Held(Protocol):
    """A regulariser whose strength can be chosen."""

    tau: float

    @property
    def model(self) -> nn.Module: ...

    @property
    def likelihood(self) -> Likelihood: ...

    @property
    def memories(self) -> Sequence[Memory]: ...

    def penalty(self) -> Tensor: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@dataclass(frozen=True)
class Chosen:
    """The settings of a month's training, and the held-out loss of each that was tried."""

    epochs: int
    tau: float
    tried: tuple[tuple[int, float, float], ...] = ()  # (epochs, tau, loss)


def fit(reg: Held, x: Tensor, y: Tensor, epochs: int, seed: int, watch: Callable[[float], None]) -> None:
    """Adam on mean nll + penalty in shuffled minibatches, its learning rate falling to zero: the model is changed."""
    model, size = reg.model, batch_size(len(x))
    steps = epochs * math.ceil(len(x) / size)
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    model.train()
    with torch.random.fork_rng(devices=[]):  # dropout draws from it
        torch.manual_seed(seed)
        for step, batch in zip(range(steps), _minibatches(len(x), size, seed), strict=False):
            loss = reg.likelihood.nll(outputs(model, x[batch]), y[batch]).mean() + reg.penalty()
            optimizer.zero_grad()
            loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * (1 - step / steps)
            optimizer.step()
            watch((step + 1) / steps)
    model.eval()


def choose(
    reg: Held, x: Tensor, y: Tensor, validation: Tensor, epochs: int | None, tau: float | None, seed: int, watch: Watch
) -> Chosen:
    """The epochs of the first month, or the tau of a later one, with the lowest held-out loss; reg is left as it was.

    validation: which examples are held out for it, bool (n,). The loss of a later month is its mean nll there plus
    that of each past month at its remembered examples, every month counting the same.
    """
    past = [memory for memory in reg.memories if len(memory)]
    lengths = (epochs,) if epochs else LENGTHS if not past else (LENGTHS[-1],)
    strengths = (tau,) if tau is not None else STRENGTHS if past else (reg.tau,)
    if len(lengths) * len(strengths) == 1:
        return Chosen(lengths[0], strengths[0])
    weights, before = _weights(reg.model), reg.tau
    tried: list[tuple[int, float, float]] = []
    try:
        for length in lengths:
            for strength in strengths:
                reg.tau = strength
                what = f"trying tau {strength:g}" if past else f"trying {length} epochs"
                fit(reg, x[~validation], y[~validation], length, seed, partial(watch, what))
                losses = [_nll(reg, x[validation], y[validation])]
                losses += [_nll(reg, memory.inputs, memory.labels) for memory in past]
                tried.append((length, strength, statistics.mean(losses)))
                _restore(reg.model, weights)
            if len(tried) > 1 and not past and tried[-1][2] >= tried[-2][2]:
                break
    finally:
        _restore(reg.model, weights)
        reg.tau = before
    length, strength, loss = min(tried, key=lambda one: one[2] if math.isfinite(one[2]) else math.inf)
    if not math.isfinite(loss):
        raise FrompError(
            f"training gave a loss of {loss} with every setting tried: {tried}; scale the label or inputs."
        )
    return Chosen(length, strength, tuple(tried))


def predicted(model: nn.Module, x: Inputs) -> Tensor:
    """The model's outputs in evaluation mode, some at a time: (n, outputs)."""
    with evaluating(model), torch.no_grad():
        return torch.cat([outputs(model, part) for part in split(x, TEST_BATCH)])


def batch_size(count: int) -> int:
    """About a twentieth of the examples: 8 to 128."""
    return min(128, max(8, count // 20))


def _nll(reg: Held, x: Inputs, y: Tensor) -> float:
    return float(reg.likelihood.nll(predicted(reg.model, x), y).mean())


def _minibatches(count: int, size: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(count, generator=generator).split(size)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def _restore(model: nn.Module, weights: dict[str, Tensor]) -> None:
    model.load_state_dict(weights)
