"""The plain distance between means: the metric of FROMP-L2, one point at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from fromp.likelihoods import Likelihood
from fromp.metrics.pointwise import Pointwise


@final
@dataclass(frozen=True)
class Means(Pointwise):
    """|m - m_old|^2."""

    def distance(
        self, likelihood: Likelihood, f: Tensor, old: Tensor, labels: Sequence[tuple[Tensor | float, Tensor]]
    ) -> Tensor:
        return (likelihood.mean(f) - likelihood.mean(old)).square().sum(-1)
