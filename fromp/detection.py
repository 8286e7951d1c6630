"""Where a new task begins when nobody says so: the appendix "Task boundary detection", and what it leaves undone.

A detector looks at each minibatch before it is trained on. It compares the network now with the network as the
present task found it, at the minibatch's inputs.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple, TypeAlias, final

import torch
from torch import Tensor, nn

from fromp import gp, inputs
from fromp.errors import FrompError
from fromp.inputs import Inputs
from fromp.likelihoods import Likelihood
from fromp.model import Weights, evaluating, outputs


class Verdict(Enum):
    """What is to be done with a minibatch."""

    SAME = "same"  # it belongs to the present task, and so do those held back before it
    UNSURE = "unsure"  # hold it back until the next one has come
    NEW = "new"  # it is of a new task, which began with it or with one of those held back


class Evidence:
    """A minibatch that has not been trained on, the network now and the network as the present task found it."""

    def __init__(
        self,
        model: nn.Module,
        past: nn.Module,
        likelihood: Likelihood,
        x: Inputs,
        y: Tensor,
        examples: int | None = None,  # that networks are run on for the sake of looking
        now: Tensor | None = None,  # f(x) of all of them, if it is known: looking then costs one pass, not two
    ) -> None:
        self.model, self.past, self.likelihood = model, past, likelihood
        self.few, self._now = inputs.take(x, slice(0, examples)), now
        self.y = y[:examples] if now is None else y

    @cached_property
    def now(self) -> Tensor:
        """f of the network now: (b, c)."""
        if self._now is not None:
            return self._now
        with evaluating(self.model), torch.no_grad():
            return outputs(self.model, self.few)

    @cached_property
    def before(self) -> Tensor:
        """f of the network as the task found it, for the first few: (few, c)."""
        with torch.no_grad():
            return outputs(self.past, self.few)


Signal: TypeAlias = Callable[[Evidence], Tensor]  # one number for each example, low on data of a new task: (b,)


def squared_differences(evidence: Evidence) -> Tensor:
    """(m_t,i - m_t-1,i)^2 for each output, step 1 of the appendix: (few, c)."""
    mean, before = evidence.likelihood.mean, evidence.before
    return (mean(evidence.now[: len(before)]) - mean(before)).square()


def distance(evidence: Evidence) -> Tensor:
    """sum_c (m_t - m_t-1)^2: low where the task has not moved the network, as on data it has never seen: (few,)."""
    return squared_differences(evidence).sum(-1)


def fit(evidence: Evidence) -> Tensor:
    """p / (1 + p) of the label, p = exp(-nll): low where the network is wrong, and bounded: (b,)."""
    return torch.sigmoid(-evidence.likelihood.nll(evidence.now, evidence.y))


def jeffreys(one: gp.Prediction, other: gp.Prediction) -> Tensor:
    """KL(p, q) + KL(q, p) of the Gaussians N(m, v) of each output: (b, c)."""
    apart = (one.mean - other.mean).square()
    return 0.5 * ((one.variance + apart) / other.variance + (other.variance + apart) / one.variance) - 1


@final
class Divergence:
    """The signal the appendix proposes: the full GP predictives of the two networks, by their divergence: (b,).

    `precisions` gives the precision of the weights now and at the task's start. The variances cost a backward pass
    for each output and network, so only the first `examples` of a minibatch are looked at.
    """

    def __init__(self, precisions: Callable[[], tuple[Weights, Weights]], examples: int = 8) -> None:
        self.precisions, self.examples = precisions, examples

    def __call__(self, evidence: Evidence) -> Tensor:
        now, before = (
            gp.predict(
                model,
                inputs.take(evidence.few, slice(0, self.examples)),
                evidence.likelihood,
                {k: 1 / p for k, p in precision.items()},
            )
            for model, precision in zip((evidence.model, evidence.past), self.precisions(), strict=True)
        )
        return jeffreys(now, before).log1p().sum(-1)


class Detector(ABC):
    """Decides, minibatch after minibatch, whether a new task has begun."""

    names: ClassVar[tuple[str, ...]]  # of the numbers in `values`

    def __init__(self, examples: int | None) -> None:
        if examples is not None and examples < 2:
            raise FrompError(f"examples={examples} of a minibatch have no variance; use at least 2, or None for all.")
        self.examples = examples  # of a minibatch that the networks are run on; None for all
        self.values: Sequence[float] = ()  # what the last minibatch came to
        self.fresh = 1  # how many minibatches are of the new task when there is one: the last, and those held before
        self.begin_task()

    @abstractmethod
    def begin_task(self) -> None:
        """Forget the minibatches so far: they were of another task."""

    @abstractmethod
    def examine(self, evidence: Evidence, armed: bool = True) -> Verdict:
        """What to do with a minibatch. Unless `armed` it is of the present task, and only taken note of."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What was taken note of, as JSON values; `restore` takes it back."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Return to a state that `state` gave."""


@final
class Welch(Detector):
    """The paper's detector: Welch's t between a minibatch and the one before, averaged over outputs, above a threshold.

    t = (mean before - mean now) / sqrt(var before / n before + var now / n now), of the squared differences. It is high
    when they drop. The paper finds every change of Permuted MNIST with thresholds from about 0.9 to 1.8.
    """

    names = ("squared difference", "Welch's t")

    def __init__(self, threshold: float = 1.3, examples: int | None = None) -> None:
        if not 0 < threshold < float("inf"):
            raise FrompError(f"threshold={threshold} is impossible; it must be positive and finite, such as 1.3.")
        self.threshold = threshold
        super().__init__(examples)

    def begin_task(self) -> None:
        self._last: Moments | None = None

    def examine(self, evidence: Evidence, armed: bool = True) -> Verdict:
        squares = squared_differences(evidence).double()
        deviation, mean = torch.std_mean(squares, 0)
        now = Moments(mean.tolist(), deviation.tolist(), len(squares))
        t = 0.0 if self._last is None else welch(self._last, now)
        self._last = now
        self.values = float(mean.sum()), t
        return Verdict.NEW if armed and t > self.threshold else Verdict.SAME

    def state(self) -> dict[str, Any]:
        return {"last": self._last}

    def restore(self, state: dict[str, Any]) -> None:
        self._last = None if state["last"] is None else Moments(*state["last"])


class Moments(NamedTuple):
    """Of a minibatch's values, for each output."""

    mean: list[float]
    deviation: list[float]
    examples: int


def welch(before: Moments, now: Moments) -> float:
    """Welch's t, averaged over outputs; 0 for an output that never varies."""
    try:
        import numpy as np
        from scipy.stats import ttest_ind_from_stats
    except ImportError as error:
        raise FrompError(
            "Welch's t comes from scipy, which is not installed; pip install fromp[experiments]."
        ) from error
    with np.errstate(divide="ignore", invalid="ignore"):
        t = ttest_ind_from_stats(*before, *now, equal_var=False).statistic
    return float(np.where(np.equal(before.mean, now.mean), 0.0, t).mean())


@final
class Calibrated(Detector):
    """A new task has begun when r minibatches in a row lie below the k-th lowest of the present task's last n.

    Nothing is set by hand: k follows from `false_alarm`, the probability for each minibatch that a new task is
    announced there though none began. As long as the task stays the same, its last n values and the next r come in
    any order with the same probability, so the next r all lie below the k-th lowest of the n with probability

        k / (n + 1) * (k + 1) / (n + 2) * ... * (k + r - 1) / (n + r)

    whatever the distribution: heavy tails cost nothing. k is the largest that keeps this within `false_alarm`, divided
    by the number of `tests`. Each of those is a signal and an r: a short run finds a large drop at once, a long one a
    small drop. While n is too small for a short run, the run is longer.

    That any order is as likely is an assumption, and this is done for it. Early in a task the values still rise: only
    the younger half of the task's minibatches counts, `window` of them at most. A rise makes alarms rarer. The
    minibatches in doubt are held back untrained, so that all r are seen by the same weights and differ by chance
    alone; nothing is learned from a minibatch of the new task before the old one has been remembered.

    There are two signals, because new data shows in two ways. `distance` is low where the task has not moved the
    network (the paper's insight), even if an earlier task taught it the answers. `fit` is low where its answers are
    wrong, even if the new data is close to the old: then it drops by little, which takes a long run.
    """

    names = ("distance", "fit")
    FEWEST = 10  # values to compare with

    def __init__(
        self,
        false_alarm: float = 1e-6,
        *,
        tests: Sequence[tuple[Signal, int]] = ((distance, 4), (fit, 4), (fit, 12)),
        window: int = 250,
        examples: int | None = 32,
    ) -> None:
        if not 0 < false_alarm < 1:
            raise FrompError(f"false_alarm={false_alarm} is no probability; it must be in (0, 1), such as 1e-6.")
        runs = [run for _, run in tests]
        if not runs or min(runs) < 1 or window < self.FEWEST:
            raise FrompError(
                f"tests with runs of {runs} in a window of {window} are impossible; "
                f"use at least one test, runs of at least 1 and a window of at least {self.FEWEST}."
            )
        self.false_alarm, self.tests, self.window = false_alarm, tuple(tests), window
        self._signals = list(dict.fromkeys(signal for signal, _ in tests))
        super().__init__(examples)

    def begin_task(self) -> None:
        self._age = 0
        self._recent: deque[list[float]] = deque(maxlen=self.window)  # values of the task's minibatches, by signal
        self._held: list[list[float]] = []  # of those in doubt
        self._runs: list[Run] = []  # of each test, as it was set up when the doubt began

    def examine(self, evidence: Evidence, armed: bool = True) -> Verdict:
        self.values = values = [float(signal(evidence).mean()) for signal in self._signals]
        if not self._held:
            self._runs = self._set_up() if armed else []
        self._held.append(values)
        for run in self._runs:
            run.count(values)
        if passed := [run.length for run in self._runs if run.length >= run.needed]:
            self.fresh = min(passed)
            return Verdict.NEW
        if any(run.length for run in self._runs) and len(self._held) < 2 * max(run.needed for run in self._runs):
            return Verdict.UNSURE
        self._age += len(self._held)
        self._recent.extend(self._held)
        self._held = []
        return Verdict.SAME

    def _set_up(self) -> "list[Run]":
        n = min(self.window, self._age // 2)
        if n < self.FEWEST:
            return []
        columns = [sorted(column) for column in zip(*list(self._recent)[-n:], strict=True)]
        runs = []
        for signal, least in self.tests:
            place = self._signals.index(signal)
            needed, rank = run_and_rank(n, self.false_alarm / len(self.tests), least)
            runs.append(Run(place, columns[place][rank - 1], needed))
        return runs

    def state(self) -> dict[str, Any]:
        held = [list(values) for values in self._held]
        runs = [vars(run).copy() for run in self._runs] if held else []
        return {"age": self._age, "recent": list(self._recent), "held": held, "runs": runs}

    def restore(self, state: dict[str, Any]) -> None:
        self._age, self._held = state["age"], [list(values) for values in state["held"]]
        self._recent = deque(state["recent"], maxlen=self.window)
        self._runs = [Run(**run) for run in state["runs"]]


@dataclass
class Run:
    """How many of the last minibatches in a row were below a limit, and how many it takes."""

    signal: int
    limit: float
    needed: int
    length: int = 0

    def count(self, values: Sequence[float]) -> None:
        """Take the next minibatch into account."""
        self.length = self.length + 1 if values[self.signal] < self.limit else 0


DETECTORS: dict[str, Callable[..., Detector]] = {"calibrated": Calibrated, "welch": Welch}


@lru_cache(maxsize=4096)
def run_and_rank(n: int, false_alarm: float, least: int) -> tuple[int, int]:
    """The lowest r >= `least` and then the highest k <= n whose probability is not above `false_alarm`."""
    run = least
    while in_a_row(n, 1, run) > false_alarm:
        run += 1
    rank = 1
    while rank < n and in_a_row(n, rank + 1, run) <= false_alarm:
        rank += 1
    return run, rank


def in_a_row(n: int, k: int, r: int) -> float:
    """The probability that r values all lie below the k-th lowest of n others, if every order is as likely."""
    return math.prod((k + i) / (n + 1 + i) for i in range(r))
