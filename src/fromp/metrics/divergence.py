"""The Kullback-Leibler divergence from the old prediction: the metric of distillation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from fromp.foundation.checked import positive
from fromp.likelihoods import Likelihood
from fromp.metrics.pointwise import Pointwise


@final
@dataclass(frozen=True)
class Divergence(Pointwise):
    """T^2 KL(p(y | f_old / T) || p(y | f / T)): the nll is affine in y, so that its expectation is that at the mean."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        positive("temperature", self.temperature)

    def distance(
        self, likelihood: Likelihood, f: Tensor, old: Tensor, labels: Sequence[tuple[Tensor | float, Tensor]]
    ) -> Tensor:
        t = self.temperature
        old = old / t
        mean = likelihood.mean(old)
        return t**2 * (likelihood.nll(f / t, mean) - likelihood.nll(old, mean))
