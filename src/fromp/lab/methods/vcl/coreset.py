"""Coresets: examples withheld from a task's training, and trained on before a test."""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from fromp.foundation.examples import Examples
from fromp.lab.methods.card import Kept
from fromp.likelihoods import Likelihood
from fromp.memory import per_class


class Coreset(ABC):
    """How a task's examples are divided into a coreset and the rest."""

    size: int  # examples of each task

    @abstractmethod
    def choose(self, examples: Examples, task: int) -> tuple[Tensor, Tensor]:
        """The indices of the examples to withhold and their scores; the same ones whenever it is asked."""


@final
class RandomCoreset(Coreset):
    """`size` random examples of each task, as many of each class."""

    def __init__(self, likelihood: Likelihood, size: int, seed: int) -> None:
        self.size, self._likelihood, self._seed = size, likelihood, seed

    def choose(self, examples: Examples, task: int) -> tuple[Tensor, Tensor]:
        classes = torch.cat([self._likelihood.classes(y) for _, y in examples.batches(10_000)])
        scores = torch.rand(len(classes), generator=torch.Generator().manual_seed(self._seed + task))
        chosen = per_class(scores, classes, self.size)
        return chosen, scores[chosen]


@final
class MemorableCoreset(Coreset):
    """The `size` examples that a run of FROMP has kept of each task."""

    def __init__(self, kept: Kept, size: int) -> None:
        self.size, self._kept = size, kept

    def choose(self, examples: Examples, task: int) -> tuple[Tensor, Tensor]:
        return self._kept(task)
