"""How each task of a benchmark is fitted."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SCHEDULES: dict[str, Callable[[float], float]] = {  # the share of a task that is done -> a factor on lr
    "constant": lambda done: 1.0,
    "linear-decay": lambda done: 1.0 - done,
}


@dataclass(frozen=True)
class Training:
    """How a task is fitted."""

    epochs: int
    batch_size: int
    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    clip: float | None = None  # of the norm of the gradient of `mean nll + penalty`
    schedule: str = "constant"

    def optimizer(self, parameters: list[Tensor]) -> torch.optim.Adam:
        """Adam for these parameters."""
        return torch.optim.Adam(parameters, self.lr, (self.beta1, self.beta2), fused=True)
