"""What a context gives to a step: points, and the outputs that are held there."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fromp.contexts.past import Constants, Past
from fromp.derivatives.model import Head
from fromp.foundation import inputs
from fromp.foundation.collectives import Ranks
from fromp.foundation.inputs import Inputs
from fromp.memory import Memory


class Present(NamedTuple):
    """The minibatch of the step, if it is given, and the head that is being trained on it."""

    inputs: "Inputs | None"
    head: Head
    outputs: Tensor | None = None  # all outputs of the network there, if they are known
    constants: Constants = ()  # the model's further arguments, such as the name of the task
    under: Callable[[Constants], Inputs] | None = None  # the minibatch as the model takes it with other ones


@dataclass(frozen=True)
class Points:
    """Points at which the network is held in one step: n of them, k heads at each."""

    inputs: Inputs  # (n, ...)
    columns: Tensor | None  # (n, k, c) the outputs held at each point; None for all of them
    scale: float  # the number of tasks, or heads, that their mean stands for
    labels: tuple[tuple[Tensor | float, Tensor], ...] = ()  # each point's labels with their shares, (n,) or a number
    old: Tensor | None = None  # (n, c) the old network's outputs that are held, if they are known
    num_outputs: int | None = None  # of the old network there, in all heads, if that is known
    now: Tensor | None = None  # (n, all) the network's outputs, if they are known
    tasks: tuple[tuple[int, slice], ...] = ()  # tasks of which every remembered point is here, and where

    def held(self, f: Tensor) -> Tensor:
        """Those of the network's outputs that are held: (n * k, c)."""
        if self.columns is None:
            return f
        return f.gather(1, self.columns.flatten(1)).view(-1, self.columns.shape[2])

    def share(self, ranks: Ranks) -> "Points":
        """This rank's part of points that all ranks have drawn: the average of the parts is the whole.

        The first point, times 0, where there are fewer points than ranks, so that every rank has the same graph.
        """
        n = inputs.num_examples(self.inputs)
        own = ranks.share(n)
        scale = self.scale * ranks.size * (own.stop - own.start) / n
        own = own if own.start < own.stop else slice(0, 1)
        return replace(
            self,
            inputs=inputs.take(self.inputs, own),
            columns=None if self.columns is None else self.columns[own],
            scale=scale,
            labels=tuple((u[own] if isinstance(u, Tensor) else u, y[own]) for u, y in self.labels),
            old=None if self.old is None else self.old[own],
            now=None if self.now is None else self.now[own],
        )


class Context(ABC):
    """Where the function is held."""

    labelled: ClassVar[bool] = False
    """Whether its points have labels."""
    of_rank: ClassVar[bool] = False
    """Whether each rank has points of its own; else all ranks draw the same ones."""

    @property
    def whole(self) -> bool:
        """Whether it gives every remembered point of every task at each step."""
        return False

    @abstractmethod
    def draw(self, past: Past, present: Present, generator: torch.Generator) -> Iterator[Points]:
        """The points of one step."""

    def check(self, memory: Memory) -> None:
        """An error if this task cannot be held so; called when it ends."""
        return
