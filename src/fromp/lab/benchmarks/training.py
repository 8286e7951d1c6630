"""How each task of a benchmark is fitted."""

from collections.abc import Callable
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
    schedule: Literal["constant", "linear-decay"] = "constant"
    """Learning rate within a task: constant, or falling linearly to zero."""
    betas: Annotated[tuple[Share, Share], Listed] = (0.9, 0.999)
    """Decay rates of Adam's moments; the paper writes 0.99 for the first, its released code has 0.9."""
    eps: Positive = 1e-8
    """Added to the denominator of Adam's step."""

    def optimizer(self, parameters: list[Tensor]) -> torch.optim.Adam:
        """Adam for these parameters."""
        return torch.optim.Adam(parameters, self.lr, self.betas, self.eps, fused=True)
