"""Whether the penalty runs away from what it can be worth."""

import math
import warnings
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from fromp.foundation.errors import FrompWarning

BETWEEN_LOOKS = 16  # penalties, of which one is read; on another device than the CPU, when the next one is sent
RUNAWAY_LOOKS = 3  # looks in a row that find the penalty too high
RUNAWAY = 100.0  # times what labels cost a model that gives 0 for everything, or 1 nat


@final
class RunawayWatch:
    """Warns once if the penalty stays far above what labels cost a model that knows nothing.

    When a task begins the penalty is zero, and a minimiser that raises it raises it less than it lowers the nll. A
    penalty that stays so high has thrown training off instead.
    uninformed: the nll of remembered labels where all outputs are 0.
    lost: the past tasks at whose memory the model's outputs are not finite.
    way_out: a sentence that says what to do about it.
    """

    def __init__(self, uninformed: Callable[[], float], lost: Callable[[], list[int]], way_out: str) -> None:
        self._uninformed, self._lost, self._way_out = uninformed, lost, way_out
        self._penalties = self._high = 0
        self._sent: tuple[Tensor, torch.Event] | None = None
        self._limit: float | None = None

    def look(self, penalty: Tensor) -> None:
        """Called with each penalty; reads one in `BETWEEN_LOOKS`, and never waits for a device."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or self._high >= RUNAWAY_LOOKS:
            return
        self._penalties += 1
        if self._penalties % BETWEEN_LOOKS:
            return
        if penalty.device.type == "cpu":
            self._judge(float(penalty.detach()))
            return
        sent = self._sent
        arrived = torch.Event(penalty.device)
        self._sent = penalty.detach().to("cpu", non_blocking=True), arrived
        arrived.record()
        if sent is not None and sent[1].query():
            self._judge(float(sent[0]))

    def _judge(self, value: float) -> None:
        if self._limit is None:
            self._limit = RUNAWAY * max(1.0, self._uninformed())
        self._high = 0 if value <= self._limit else self._high + 1  # NaN counts as high
        if self._high == RUNAWAY_LOOKS and not math.isfinite(value):
            tasks = ", ".join(map(str, self._lost())) or "none of the past ones by itself"
            warnings.warn(
                f"the penalty is {value} and stays so: the model's outputs are not finite at the memory of task "
                f"{tasks}. Training has diverged; go back to weights from before, and lower the learning rate.",
                FrompWarning,
                stacklevel=4,
            )
        elif self._high == RUNAWAY_LOOKS:
            warnings.warn(
                f"the penalty has run away: it is {value:.3g} and stays above {self._limit:.3g}, {RUNAWAY:g} times "
                "what labels cost a model that knows nothing, because steps along its steep directions are too long. "
                f"{self._way_out}",
                FrompWarning,
                stacklevel=4,
            )
