"""Functional L2 regularisation on a working memory, Eq. (1)."""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from fromp.derivatives.model import evaluating, outputs
from fromp.lab.methods.rehearsal import WithOutputs
from fromp.likelihoods import Likelihood


@final
class FunctionalL2(WithOutputs):
    """strength sum_s |f_(t,s) - f_(t-1,s)|^2, Eq. (1) divided by N, on a random working memory (Benjamin et al. 2018).

    f are the outputs themselves, not the means that they stand for. They are held where they were at the last task's
    end, on the examples of every task.
    """

    def __init__(self, model: nn.Module, likelihood: Likelihood, memory: int, strength: float, seed: int) -> None:
        super().__init__(model, likelihood, memory, seed)
        self.strength = strength

    def penalty(self) -> Tensor:
        if not self.memories:
            return super().penalty()
        with evaluating(self.model):
            distances = [
                (outputs(self.model, memory.inputs, memory.head) - before).square().sum()
                for memory, before in zip(self.memories, self.outputs, strict=True)
            ]
        return self.strength * torch.stack(distances).sum()

    def end_task(self, data: Any, head: Sequence[int] | None = None) -> None:
        super().end_task(data, head)
        self.outputs = self.outputs_at(self.memories)
