"""Functions of the accuracy matrix R, where R[i][j] is the accuracy on task j after training on task i."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Row = Sequence[float] | None  # the tasks seen so far, 0 to i; None if nothing was trained at task i
Matrix = Sequence[Row]


@dataclass(frozen=True)
class Summary:
    """A number over seeds: mean, standard deviation (n - 1), standard error and number of seeds."""

    mean: float
    std: float
    stderr: float
    n: int


def average_accuracy(accuracy: Matrix) -> float | None:
    """The mean over tasks after the last one; None if nothing was trained there."""
    last = accuracy[-1] if accuracy else None
    return None if last is None else sum(last) / len(last)


def backward_transfer(accuracy: Matrix) -> float | None:
    """BWT = 1 / (T-1) sum_{i<T} R_Ti - R_ii; None for a single task, or if some R_ii is missing."""
    rows = [row for row in accuracy if row is not None]
    last = len(accuracy) - 1
    if last < 1 or len(rows) <= last:
        return None
    return sum(rows[last][i] - rows[i][i] for i in range(last)) / last


def forward_transfer(accuracy: Matrix, separate: Sequence[float]) -> float | None:
    """FWT = 1 / (T-1) sum_{i>1} R_ii - R_i^ind, with the accuracy of a network trained on task i alone."""
    rows = [row for row in accuracy if row is not None]
    last = len(accuracy) - 1
    if last < 1 or len(rows) <= last:
        return None
    return sum(rows[i][i] - separate[i] for i in range(1, last + 1)) / last


def forgetting(accuracy: Matrix) -> float | None:
    """The mean over past tasks of the best accuracy before the last task minus that after it; None as for BWT."""
    rows = [row for row in accuracy if row is not None]
    last = len(accuracy) - 1
    if last < 1 or len(rows) <= last:
        return None
    return sum(max(rows[i][j] for i in range(j, last)) - rows[last][j] for j in range(last)) / last


def detection(true: Sequence[int], found: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """How boundaries that were found, (begins, noticed), compare with the true ones.

    The first to be noticed between a true boundary and the next one has found it. `delays` are the minibatches of
    the new task that came before the one at which it was noticed, `shifts` those between where it was placed and
    where it is, both None for a miss. Every other one is a false alarm.
    """
    delays: list[int | None] = []
    shifts: list[int | None] = []
    for start, stop in pairwise([*true, math.inf]):
        own = [(begins, noticed) for begins, noticed in found if start <= noticed < stop]
        delays.append(own[0][1] - int(start) if own else None)
        shifts.append(own[0][0] - int(start) if own else None)
    misses = delays.count(None)
    return {
        "true": list(true), "found": [list(one) for one in found], "delays": delays, "shifts": shifts,
        "misses": misses, "false_alarms": len(found) - len(true) + misses,
    }  # fmt: skip


def threshold_range(statistic: Sequence[float], true: Sequence[int], first: int) -> tuple[float, float]:
    """The highest value within tasks, their first few minibatches apart, and the lowest one at a true boundary."""
    tasks = pairwise([0, *true, len(statistic)])
    within = [max(statistic[start + first : stop], default=-math.inf) for start, stop in tasks]
    return max(within), min((statistic[index] for index in true), default=math.inf)


def summarise(values: Sequence[float]) -> Summary | None:
    """The values over seeds; None if there are none."""
    if not values:
        return None
    n = len(values)
    mean = sum(values) / n
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1)) if n > 1 else 0.0
    return Summary(mean, std, std / math.sqrt(n), n)
