"""The parabola that holds the weights where they were, as strongly as the data say that are not kept."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fromp.foundation.collectives import Ranks
from fromp.foundation.shards import Shards
from fromp.gp import ggn_diagonal
from fromp.likelihoods import Likelihood
from fromp.memory import Memory


def parabola(
    now: Mapping[str, Tensor], then: Mapping[str, Tensor], precision: Mapping[str, Tensor], strength: float
) -> Tensor:
    """strength / 2 sum_w v_w (w - w_old)^2, over the rows that each weight had: a scalar."""
    parts = [
        (v * (now[name][: len(v)] if v.ndim else now[name]).sub(then[name]).square()).sum()
        for name, v in precision.items()
    ]
    return 0.5 * strength * torch.stack(parts).sum()


def precision_with(
    known: Mapping[str, Tensor], network: nn.Module, task: Shards, memory: Memory, likelihood: Likelihood, ranks: Ranks
) -> dict[str, Tensor]:
    """The precision that is known, and the GGN diagonal of what is not kept of a task, divided by the task's size."""
    left = torch.ones(len(task), dtype=torch.bool)
    left[memory.indices] = False
    others = task.own(left.nonzero().flatten())
    ggn = {name: torch.zeros_like(value) for name, value in known.items()}
    with ranks.agreement():
        if len(others):
            ggn = ggn_diagonal(network, tuple(known), others, likelihood, memory.head)
    return {name: known[name] + ranks.total(g) / len(task) for name, g in ggn.items()}
