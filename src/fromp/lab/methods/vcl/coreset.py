"""Coresets: examples withheld from a task's training, and trained on before a test."""

from abc import ABC, abstractmethod
from copy import deepcopy
from typing import Any, final

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Head
from fromp.foundation.examples import Examples
from fromp.foundation.state import State
from fromp.lab.methods.base import Penalised
from fromp.likelihoods import Likelihood
from fromp.memory import assess, per_class
from fromp.regulariser import FROMP


class Coreset(ABC):
    """How a task's examples are divided into a coreset and the rest."""

    size: int  # examples of each task

    @abstractmethod
    def choose(self, examples: Examples, head: Head, task: int) -> tuple[Tensor, Tensor]:
        """The indices of the examples to withhold and their scores; the same again for the same past."""

    def keep(self) -> None:
        """Called once the task that was last chosen from has ended."""
        return

    def state_dict(self) -> State:
        """What the choice for the next task depends on."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Return to a state that `state_dict` gave."""
        return


@final
class RandomCoreset(Coreset):
    """`size` random examples of each task, as many of each class."""

    def __init__(self, likelihood: Likelihood, size: int, seed: int) -> None:
        self.size, self._likelihood, self._seed = size, likelihood, seed

    def choose(self, examples: Examples, head: Head, task: int) -> tuple[Tensor, Tensor]:
        classes = torch.cat([self._likelihood.classes(y) for _, y in examples.batches(10_000)])
        scores = torch.rand(len(classes), generator=torch.Generator().manual_seed(self._seed + task))
        chosen = per_class(scores, classes, self.size)
        return chosen, scores[chosen]


@final
class MemorableCoreset(Coreset):
    """The memorable past of an independent run of FROMP, which learns each task just before.

    base: the plan that FROMP has on this benchmark. size: points of each task.
    """

    def __init__(self, model: nn.Module, likelihood: Likelihood, size: int, base: Any, seed: int) -> None:
        self.size, self._training, self._seed = size, base.training, seed
        options = base.options
        self._fromp = FROMP(
            deepcopy(model), likelihood, options.tau, size, options.prior_precision, options.jitter, seed=seed
        )
        self._kept = self._next = self._present()

    def choose(self, examples: Examples, head: Head, task: int) -> tuple[Tensor, Tensor]:
        from fromp.lab.engine.fit import Fit  # which knows the methods, as this does

        fromp = self._fromp
        fromp.model.load_state_dict(self._kept["model"])
        fromp.load_state_dict(self._kept["fromp"])
        with torch.random.fork_rng(devices=[]):  # dropout's masks: the same when a run is resumed
            torch.manual_seed(self._seed + task)
            for _ in Fit(Penalised(fromp), [(examples, head)], self._training, self._seed + task).steps():
                pass
        scores, classes = assess(fromp.model, examples, fromp.likelihood, torch.Generator(), head, fromp.score)
        fromp.end_task(examples, head)
        self._next = self._present()
        chosen = per_class(scores, classes, self.size)
        return chosen, scores[chosen]

    def keep(self) -> None:
        self._kept = self._next

    def state_dict(self) -> State:
        return self._kept

    def load_state_dict(self, state: State) -> None:
        self._kept = state

    def _present(self) -> State:
        model = {name: value.clone() for name, value in self._fromp.model.state_dict().items()}
        return {"model": model, "fromp": self._fromp.state_dict()}
