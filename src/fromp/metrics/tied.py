"""A metric that ties the remembered points of a task together: d' P d on the outputs, P fixed when the task ends."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from fromp.foundation.examples import Examples
from fromp.likelihoods import Likelihood
from fromp.memory import Memory


class Tied(ABC):
    """What a deviation at all of a task's points costs together."""

    of_labels: ClassVar[bool] = False

    @abstractmethod
    def fixed(self, model: nn.Module, memory: Memory, examples: Examples, likelihood: Likelihood) -> Tensor:
        """P for each output, from the task's data, once: (c, i, j)."""

    def distance(self, d: Tensor, fixed: Tensor) -> Tensor:
        """sum_c d_c' P_c d_c from deviations d: (i, c)."""
        return torch.einsum("ic,cij,jc->", d, fixed.to(d), d)
