"""The terms of a penalty on a network's function: what a step holds, and how far the network is from it there."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from fromp.contexts.context import Context, Points, Present
from fromp.contexts.past import Past
from fromp.derivatives.model import evaluating, outputs_of_parts
from fromp.foundation.checked import number
from fromp.foundation.collectives import Ranks
from fromp.foundation.errors import DataError, FrompError
from fromp.likelihoods import Likelihood
from fromp.metrics.pointwise import Pointwise
from fromp.metrics.tied import Tied

Fixed: TypeAlias = list[Tensor | None]  # what the metric of each hold has fixed at a task


@dataclass(frozen=True)
class Hold:
    """One term of a penalty: strength * sum over past tasks of the mean distance over a context's points."""

    context: Context
    metric: Pointwise | Tied
    strength: float

    def __post_init__(self) -> None:
        number("strength", self.strength)
        if self.metric.of_labels and not self.context.labelled:
            raise FrompError(
                f"{type(self.context).__name__} has no labels to hold; give Labels() with Remembered or Mixtures."
            )
        if isinstance(self.metric, Tied) and not self.context.whole:
            raise FrompError(
                f"{self.metric} ties all remembered points of a task together, and {self.context} gives other points; "
                "hold it at Remembered()."
            )


def drawn(
    holds: Sequence[Hold], past: Past, present: Present, generator: torch.Generator, ranks: Ranks
) -> Iterator[tuple[Hold, Points]]:
    """What each term holds in a step, this rank's share of it. Without gradients, nothing is drawn for the next."""
    before = None if torch.is_grad_enabled() else generator.get_state()
    for hold in holds:
        if hold.strength:
            for points in hold.context.draw(past, present, generator):
                together = hold.context.of_rank or isinstance(hold.metric, Tied) or ranks.size == 1
                yield hold, points if together else points.share(ranks)
    if before is not None:
        generator.set_state(before)


def distances(
    terms: Sequence[tuple[Hold, Points]],
    network: nn.Module,
    old_network: nn.Module,
    likelihood: Likelihood,
    fixed: Callable[[Hold, int], Tensor | None],
) -> list[Tensor]:
    """The share of each term in the penalty, after one pass of each network.

    fixed: what the metric of a hold has fixed at a task, if it is `Tied`.
    """
    unknown = [(hold, points) for hold, points in terms if points.old is None and not hold.metric.of_labels]
    with evaluating(network):
        now = iter(outputs_of_parts(network, [points.inputs for _, points in terms if points.now is None]))
        with torch.no_grad():
            then = iter(outputs_of_parts(old_network, [points.inputs for _, points in unknown]))
    shares = []
    for hold, points in terms:
        f = next(now) if points.now is None else points.now
        there = next(then) if points.old is None and not hold.metric.of_labels else None
        f = points.held(_cut(f, points.num_outputs or (f if there is None else there).shape[1], points, hold.metric))
        if there is not None:
            old = points.held(there)
        elif points.old is None or hold.metric.of_labels:
            old = f
        else:
            old = points.old
        if isinstance(hold.metric, Tied):
            parts = ((f[own] - old[own], fixed(hold, task)) for task, own in points.tasks)
            shares += [hold.strength * hold.metric.distance(d, p) for d, p in parts if p is not None]
            continue
        distance = hold.metric.distance(likelihood, f, old, points.labels)
        shares.append(hold.strength * points.scale * distance.mean())
    return shares


def _cut(f: Tensor, num_outputs: int, points: Points, metric: Pointwise | Tied) -> Tensor:
    """The outputs that the old network had; all of them for labels, which new classes must not claim."""
    if f.shape[1] < num_outputs:
        raise DataError(
            f"the model has {f.shape[1]} outputs, it had {num_outputs} when its last task ended; use the same model, "
            "or one whose layers have grown: with more rows, of which the first are those they had."
        )
    whole = metric.of_labels or points.columns is not None or f.shape[1] == num_outputs
    return f if whole else f[:, :num_outputs]
