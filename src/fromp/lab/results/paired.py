"""Differences between methods over the seeds that they share: the same tasks, the same initial network."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fromp.lab.results.format import Table, points
from fromp.lab.results.metrics import summarise
from fromp.lab.results.record import Experiment


@dataclass(frozen=True)
class Difference:
    """The average accuracy of one experiment less that of another, over n seeds of both."""

    mean: float
    stderr: float
    n: int

    @property
    def p(self) -> float | None:
        """The chance of a mean at least as far from zero if there were no difference; None for a single seed."""
        if self.n < 2:
            return None
        if not self.stderr:
            return 1.0 if not self.mean else 0.0
        return two_sided(self.mean / self.stderr, self.n - 1)


def difference(one: Experiment, other: Experiment) -> Difference | None:
    """Paired by seed; None if no seed of both has finished."""
    theirs = {seed.seed: seed.average_accuracy for seed in other.finished}
    both = [(seed.average_accuracy, theirs.get(seed.seed)) for seed in one.finished]
    found = summarise([a - b for a, b in both if a is not None and b is not None])
    return None if found is None else Difference(found.mean, found.stderr, found.n)


def differences_table(first: Experiment, others: Sequence[Experiment]) -> Table:
    """The first less each of the others, in percent, and the p-value of the paired t-test, one test per row."""
    rows = []
    for other in others:
        found = difference(first, other)
        if found and found.p is not None:
            mean = f"{'+' if found.mean >= 0 else ''}{points(found.mean)} ± {points(found.stderr)}"
            rows.append([other.name, mean, f"{found.n}", chance(found.p)])
    return Table([f"{first.name} less", "difference", "shared seeds", "p"], rows)


def as_json(first: Experiment, others: Sequence[Experiment]) -> list[dict[str, Any]]:
    """The first less each of the others that has a seed in common with it."""
    found = ((other, difference(first, other)) for other in others)
    return [{"method": first.name, "less": other.name, **asdict(d), "p": d.p} for other, d in found if d]


def chance(p: float) -> str:
    """A p-value with two digits."""
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def two_sided(t: float, freedom: int) -> float:
    """P(|T| > |t|) of Student's t with whole degrees of freedom, by the finite series in its angle."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term, total = cosine if odd else 1.0, 0.0
    for k in range(1 + odd, freedom, 2):  # cos^odd (1 + k/(k+1) cos^2 (1 + ...))
        total += term
        term *= cosine**2 * k / (k + 1)
    inside = math.sin(angle) * total
    return max(0.0, 1.0 - (2 / math.pi * (angle + inside) if odd else inside))
