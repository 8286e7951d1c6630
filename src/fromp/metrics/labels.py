"""The labels themselves: no metric of the old function, but replay, in the same place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fromp.likelihoods import Likelihood
from fromp.metrics.pointwise import Pointwise


@final
@dataclass(frozen=True)
class Labels(Pointwise):
    """nll(f, y); at a mixture of two points, the mixture of their nll."""

    of_labels = True

    def distance(
        self, likelihood: Likelihood, f: Tensor, old: Tensor, labels: Sequence[tuple[Tensor | float, Tensor]]
    ) -> Tensor:
        return torch.stack([share * likelihood.nll(f, y) for share, y in labels]).sum(0)
