"""Whether the penalty runs away from what it can be worth."""

import warnings
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from fromp.foundation.errors import FrompWarning

BETWEEN_LOOKS = 16  # penalties, of which one is read: that waits for the device
RUNAWAY_LOOKS = 3  # in a row that find the penalty too high
RUNAWAY = 100.0  # times what labels cost a model that gives 0 for everything, or 1 nat


@final
class RunawayWatch:
    """Warns once if the penalty stays far above what labels cost a model that knows nothing.

    When a task begins the penalty is zero, and a minimiser that raises it raises it less than it lowers the nll. A
    penalty that stays so high has thrown training off instead.
    uninformed: the nll of remembered labels where all outputs are 0.
    """

    def __init__(self, uninformed: Callable[[], float]) -> None:
        self._uninformed = uninformed
        self._penalties = self._high = 0
        self._limit: float | None = None

    def look(self, penalty: Tensor) -> None:
        """Called with each penalty; reads one in `BETWEEN_LOOKS`."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or self._high >= RUNAWAY_LOOKS:
            return
        self._penalties += 1
        if self._penalties % BETWEEN_LOOKS:
            return
        if self._limit is None:
            self._limit = RUNAWAY * max(1.0, self._uninformed())
        value = float(penalty.detach())
        self._high = 0 if value <= self._limit else self._high + 1  # NaN counts as high
        if self._high == RUNAWAY_LOOKS:
            warnings.warn(
                f"the penalty has run away: it is {value:.3g} and stays above {self._limit:.3g}, {RUNAWAY:g} times "
                "what labels cost a model that knows nothing, because steps along its steep directions are too long. "
                "Leave `jitter` at its default, which bounds the penalty, lower `tau` or the learning rate, or clip "
                "the gradient.",
                FrompWarning,
                stacklevel=3,
            )
