"""Detection of task boundaries: the appendix "Task boundary detection", and what it proposes without trying it.

A detector sees each minibatch before it is trained on. It compares the network now with the network at the start of the
current task, at the minibatch's inputs.
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, NamedTuple, final

from fromp.foundation.errors import CheckpointError, FrompError
from fromp.foundation.state import State, field
from fromp.regulariser import FROMP
from fromp.taskfree.evidence import Evidence, Signal, distance, divergence_of, fit, squared_differences
from fromp.taskfree.ranks import rank_sum

FALSE_ALARM = 1e-6  # probability per minibatch


class Verdict(Enum):
    """What to do with a minibatch."""

    SAME = "same"  # it belongs to the current task, and so do those held back before it
    UNSURE = "unsure"  # hold it back until the next one has come
    NEW = "new"  # it belongs to a new task, which began with it or with one of those held back


class Detector(ABC):
    """Decides, minibatch after minibatch, whether a new task has begun."""

    names: tuple[str, ...]  # what the numbers in `values` are

    def __init__(self, examples: int | None) -> None:
        if examples is not None and examples < 2:
            raise FrompError(f"examples must be at least 2, or None for all (got {examples}): fewer have no variance.")
        self.examples = examples  # the networks run on that many of a minibatch; None for all
        self.values: Sequence[float] = ()  # statistics of the last minibatch
        self.fresh = 1  # after NEW: how many of the minibatches, the last ones, belong to the new task
        self.begin_task()

    def _record_values(self, values: Sequence[float]) -> None:
        """Store the statistics of the last minibatch for plotting."""
        self.values = values
        if not all(map(math.isfinite, values)):
            said = ", ".join(f"{name} = {value:g}" for name, value in zip(self.names, values, strict=True))
            raise FrompError(
                f"the minibatch's statistics are not finite ({said}); look for inputs or outputs that are not finite, "
                "or lower the learning rate."
            )

    @abstractmethod
    def begin_task(self) -> None:
        """Forget the minibatches so far: they belonged to another task."""

    @abstractmethod
    def examine(self, evidence: Evidence, armed: bool = True) -> Verdict:
        """Classify a minibatch. If `armed` is false, record its statistics and return SAME."""

    @abstractmethod
    def state_dict(self) -> State:
        """Everything recorded of the minibatches so far."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Return to a state that `state_dict` gave."""


@final
class Welch(Detector):
    """The paper's detector: Welch's t between a minibatch and the one before, averaged over outputs, above a threshold.

    t = (mean before - mean now) / sqrt(var before / n before + var now / n now), of the squared differences. It is high
    when they drop. The paper finds every change of Permuted MNIST with thresholds from about 0.9 to 1.8.
    """

    names = ("squared difference", "Welch's t")

    def __init__(self, threshold: float = 1.3, examples: int | None = None) -> None:
        if not 0 < threshold < float("inf"):
            raise FrompError(f"threshold must be positive and finite, such as 1.3 (got {threshold}).")
        self.threshold = threshold
        super().__init__(examples)

    def begin_task(self) -> None:
        self._last: Moments | None = None

    def examine(self, evidence: Evidence, armed: bool = True) -> Verdict:
        squares = squared_differences(evidence).double()
        mean = squares.mean(0)
        if len(squares) < 2:  # one example has no variance; the next minibatch is compared with the one before
            self._record_values([float(mean.sum()), 0.0])
            return Verdict.SAME
        now = Moments(mean.tolist(), squares.std(0).tolist(), len(squares))
        t = 0.0 if self._last is None else welch(self._last, now)
        self._last = now
        self._record_values([float(mean.sum()), t])
        return Verdict.NEW if armed and t > self.threshold else Verdict.SAME

    def state_dict(self) -> State:
        return {"last": self._last}

    def load_state_dict(self, state: State) -> None:
        last = field(state, "last", list, type(None))
        if last is not None:
            mean, deviation, examples = last if len(last) == 3 else (None, None, None)
            rows = _rows([mean, deviation], len(mean) if isinstance(mean, list) else 0)
            if type(examples) is not int or examples < 2:
                raise CheckpointError(f"the saved moments are of {examples} examples; restore them from a copy.")
            last = Moments(rows[0], rows[1], examples)
        self._last = last


class Moments(NamedTuple):
    """Mean and deviation of a minibatch's values, for each output."""

    mean: list[float]
    deviation: list[float]
    examples: int


def welch(before: Moments, now: Moments) -> float:
    """Welch's t = (mean - mean') / sqrt(s^2 / n + s'^2 / n'), averaged over outputs; 0 for one that never varies."""
    ts = []
    for mean, deviation, other_mean, other_deviation in zip(*before[:2], *now[:2], strict=True):
        spread = math.sqrt(deviation**2 / before.examples + other_deviation**2 / now.examples)
        ts.append(
            0.0
            if mean == other_mean
            else (mean - other_mean) / spread
            if spread
            else math.copysign(math.inf, mean - other_mean)
        )
    return sum(ts) / len(ts)


@final
class Calibrated(Detector):
    """A new task has begun when r minibatches rank too low among the current task's last n.

    No threshold is chosen by hand. While the task stays the same, every order of its last n values and the next r has
    the same probability. So the rank sum U, the number of pairs of one of the r and one of the n below it, follows
    the distribution of Mann and Whitney, whatever the distribution of the values. The critical value of U is the
    highest whose probability is at most `false_alarm`, divided by the number of `tests`: `false_alarm` is the
    probability per minibatch that a new task is announced though none began. Each test is a signal and an r: few
    minibatches show a large drop at once, many show a small one. If n is too small for the r that is asked for, r is
    larger.

    Equal probability of all orders is an assumption, protected as follows. Early in a task the values still rise,
    which makes alarms rarer: only the younger half of the task's minibatches counts, at most `window` of them.
    Suspected minibatches are held back untrained, so nothing is learned from a new task before the old one has been
    remembered. A suspicion begins with a rank half as high as the test's average, and lasts while the ranks stay near
    that. Then the r minibatches have been seen by one network and the n before by others: if this network happens to
    be bad, all r are low. So a second test at the same level compares their examples with a sample of the current
    task's, all seen by the network as it is (`Evidence.chance`). Only minibatches that pass both tests are a new
    task. The sample has been trained on, which could make new examples look worse; the first test does not depend on
    it. A task that is confirmed late began with the first of the minibatches held back that ranks as low.

    There are two signals, because new data differ in two ways. `distance` is low if the task has not moved the
    network there (the paper's insight), even if an earlier task taught it the answers. `fit` is low if the answers
    are wrong, even if the new data are close to the old: then it drops by little, which takes many minibatches to
    show. `Calibrated.on_divergence(reg)` uses the divergence of the full GP predictives as its only signal.
    """

    FEWEST = 10  # least number of values to compare with
    PATIENCE = 0.3  # times n: how far the rank sum may exceed its share of the critical value during a suspicion

    def __init__(
        self,
        false_alarm: float = FALSE_ALARM,
        *,
        tests: Sequence[tuple[Signal, int]] = ((distance, 4), (fit, 4), (fit, 48)),
        window: int = 250,
        examples: int | None = 32,
    ) -> None:
        if not 0 < false_alarm < 1:
            raise FrompError(f"false_alarm must be in (0, 1), such as 1e-6 (got {false_alarm}).")
        runs = [run for _, run in tests]
        if not runs or min(runs) < 1 or window < self.FEWEST:
            raise FrompError(
                f"Calibrated needs at least one test, runs of at least 1 and a window of at least {self.FEWEST} "
                f"(got runs of {runs} and a window of {window})."
            )
        self.false_alarm, self.tests, self.window = false_alarm, tuple(tests), window
        self._signals = list(dict.fromkeys(signal for signal, _ in tests))
        self.names = tuple(signal.__name__ for signal in self._signals)
        super().__init__(examples)

    @classmethod
    def on_divergence(cls, regulariser: FROMP, false_alarm: float = FALSE_ALARM) -> "Calibrated":
        """With the signal that the paper proposes without trying it; for FROMP, which keeps a precision."""
        divergence = divergence_of(regulariser)
        return cls(false_alarm, tests=((divergence, 4), (divergence, 24)), examples=16)

    def begin_task(self) -> None:
        self._age = 0
        self._recent: deque[list[float]] = deque()  # values of the task's minibatches, by signal
        self._sorted: list[list[float]] = [[] for _ in self._signals]  # the same, for each signal
        self._held: list[list[float]] = []  # values of the minibatches held back
        self._runs: list[RankStreak] = []  # one per test, set up when the suspicion began

    def examine(self, evidence: Evidence, armed: bool = True) -> Verdict:
        values = [float(signal(evidence).mean()) for signal in self._signals]
        self._record_values(values)
        if not self._held:
            self._runs = self._set_up() if armed else []
        self._held.append(values)
        ranks = [bisect_right(column, value) for column, value in zip(self._sorted, values, strict=True)]
        for run in self._runs:
            run.count(ranks[run.signal])
        if passed := [run for run in self._runs if run.length == run.needed and self._confirmed(run, evidence)]:
            shortest = min(run.needed for run in passed)
            self.fresh = max(self._extent(run) for run in passed if run.needed == shortest)
            return Verdict.NEW
        if any(run.length for run in self._runs) and len(self._held) < 2 * max(run.needed for run in self._runs):
            return Verdict.UNSURE
        for known in self._held:
            self._note(known)
        self._held = []
        return Verdict.SAME

    def _extent(self, run: "RankStreak") -> int:
        """How many minibatches belong to the new task: those of the run, and those just before that rank no higher."""
        ranks = [bisect_right(self._sorted[run.signal], values[run.signal]) for values in self._held]
        highest, count = max(ranks[-run.needed :]), run.needed
        while count < len(ranks) and ranks[-count - 1] <= highest:
            count += 1
        return count

    def _confirmed(self, run: "RankStreak", evidence: Evidence) -> bool:
        """Whether its minibatches are lower than the task also when one network sees both; if not, it starts again."""
        chance = evidence.chance(self._signals[run.signal], run.needed)
        if chance > self.false_alarm / len(self.tests):
            run.clear()
            return False
        return True

    def _set_up(self) -> "list[RankStreak]":
        n = len(self._recent)
        if n < self.FEWEST:
            return []
        runs = []
        for signal, least in self.tests:
            needed, highest = rank_sum(n, self.false_alarm / len(self.tests), least)
            runs.append(RankStreak(self._signals.index(signal), needed, highest, round(self.PATIENCE * n)))
        return runs

    def _note(self, values: list[float]) -> None:
        """Record values of the current task; those of its younger half are kept, in order and sorted."""
        self._age += 1
        self._recent.append(values)
        for column, value in zip(self._sorted, values, strict=True):
            insort(column, value)
        if len(self._recent) > min(self.window, self._age // 2):
            for column, value in zip(self._sorted, self._recent.popleft(), strict=True):
                del column[bisect_left(column, value)]

    def state_dict(self) -> State:
        held = [list(values) for values in self._held]
        runs = [vars(run).copy() for run in self._runs] if held else []
        return {"age": self._age, "recent": list(self._recent), "held": held, "runs": runs}

    def load_state_dict(self, state: State) -> None:
        width = len(self._signals)
        age, runs = field(state, "age", int), field(state, "runs", list)
        held, recent = (_rows(field(state, key, list), width) for key in ("held", "recent"))
        if not len(recent) <= age or len(recent) > self.window:
            raise CheckpointError(f"{len(recent)} minibatches were saved of {age}; restore them from a copy.")
        streaks = [_streak(run, width) for run in runs]
        self._age, self._held, self._recent, self._runs = age, held, deque(recent), streaks
        self._sorted = [sorted(values[place] for values in recent) for place in range(width)]


@dataclass
class RankStreak:
    """The last minibatches, as long as they may still pass a test, and how many it takes."""

    signal: int
    needed: int
    highest: int  # critical value of their rank sum
    patience: int  # how far the rank sum may exceed its share of `highest`; the first rank must be below half of it
    length: int = 0
    ranks: int = 0  # sum of the ranks so far

    def count(self, rank: int) -> None:
        """Take the next minibatch into account."""
        self.length, self.ranks = self.length + 1, self.ranks + rank
        share = self.highest * self.length / self.needed
        if self.ranks > min(self.highest, share + self.patience if self.length > 1 else share / 2):
            self.clear()

    def clear(self) -> None:
        """Start again with the next minibatch."""
        self.length = self.ranks = 0


def _rows(saved: Any, width: int) -> list[list[float]]:
    """Rows of so many finite numbers."""
    rows: list[Any] = saved if isinstance(saved, list) else [None]
    for row in rows:
        if not isinstance(row, list | tuple) or len(row) != width or not all(map(_is_finite, row)):
            raise CheckpointError(f"the saved statistics are not {width} numbers for each minibatch; restore a copy.")
    return [[*row] for row in rows]


def _is_finite(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _streak(saved: Any, signals: int) -> RankStreak:
    """A streak that was saved."""
    names = [f.name for f in fields(RankStreak)]
    values = [field(saved, name, int) for name in names]
    found = RankStreak(*values)
    if len(saved) != len(names) or not 0 <= found.signal < signals or found.needed < 1 or min(values) < 0:
        raise CheckpointError(f"the saved streak {saved} is none; restore it from a copy.")
    return found


DETECTORS: dict[str, Callable[..., Detector]] = {
    "calibrated": Calibrated,
    "divergence": Calibrated.on_divergence,
    "welch": Welch,
}
