"""How each task of a benchmark is fitted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from fromp.lab.settings import AtLeastOne, Listed, Positive, Share, settings

SCHEDULES: dict[str, Callable[[float], float]] = {  # the share of a task that is done -> a factor on lr
    "constant": lambda done: 1.0,
    "linear-decay": lambda done: 1.0 - done,
}


@settings
class Training:
    """How a task is fitted."""

    epochs: AtLeastOne
    """Passes over the data of each task."""
    batch_size: AtLeastOne
    """Examples of a minibatch."""
    lr: Positive
    """Learning rate of Adam."""
    clip_norm: Positive | None = None
    """Largest norm of the gradient of `mean nll + penalty`; longer ones are shortened to it."""
    schedule: Literal["constant", "linear-decay", "late-decay"] = "constant"
    """Learning rate within a task: constant, falling linearly to zero, or falling in all tasks but the first."""
    betas: Annotated[tuple[Share, Share], Listed] = (0.9, 0.999)
    """Decay rates of Adam's moments; the paper writes 0.99 for the first, its released code has 0.9."""
    eps: Positive = 1e-8
    """Added to the denominator of Adam's step."""

    late_lr: Positive | None = None
    """Learning rate in all tasks but the first, if it is another one."""

    def of_task(self, task: int) -> "Training":
        """What one task is fitted with: a late decay is none in the first task, and a linear one in the others."""
        lr = (task and self.late_lr) or self.lr
        schedule = self.schedule
        if schedule == "late-decay":
            schedule = "linear-decay" if task else "constant"
        return replace(self, lr=lr, late_lr=None, schedule=schedule)

    def optimizer(self, parameters: list[Tensor]) -> torch.optim.Adam:
        """Adam for these parameters."""
        return torch.optim.Adam(parameters, self.lr, self.betas, self.eps, fused=True)
