"""The plain distance between outputs: the metric of functional L2."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from fromp.likelihoods import Likelihood
from fromp.metrics.pointwise import Pointwise


@final
@dataclass(frozen=True)
class Logits(Pointwise):
    """|f - f_old|^2."""

    def distance(
        self, likelihood: Likelihood, f: Tensor, old: Tensor, labels: Sequence[tuple[Tensor | float, Tensor]]
    ) -> Tensor:
        return (f - old).square().sum(-1)
