"""The GGN in the space of outputs: a distance that ends where the old network was certain."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fromp.likelihoods import Likelihood
from fromp.metrics.pointwise import Pointwise


@final
@dataclass(frozen=True)
class OutputHessian(Pointwise):
    """(f - f_old)' Lambda(f_old) (f - f_old): twice the divergence to second order, Lambda <= 1/2 for classes."""

    def distance(
        self, likelihood: Likelihood, f: Tensor, old: Tensor, labels: Sequence[tuple[Tensor | float, Tensor]]
    ) -> Tensor:
        d = f - old
        return torch.einsum("nc,ncd,nd->n", d, likelihood.hessian(old), d)
