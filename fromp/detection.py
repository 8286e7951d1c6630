"""Where a new task begins when nobody says so: the appendix "Task boundary detection", and what it leaves undone.

A detector looks at each minibatch before it is trained on. It compares the network now with the network as the
present task found it, at the minibatch's inputs.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, ClassVar, TypeAlias, final

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
    NEW = "new"  # it begins a new task, or the first of those held back does


class Evidence:
    """A minibatch that has not been trained on, the network now and the network as the present task found it."""

    def __init__(self, model: nn.Module, past: nn.Module, likelihood: Likelihood, x: Inputs, y: Tensor) -> None:
        self.model, self.past, self.likelihood, self.x, self.y = model, past, likelihood, x, y

    @cached_property
    def now(self) -> Tensor:
        """f(x) of the network now: (b, c)."""
        with evaluating(self.model), torch.no_grad():
            return outputs(self.model, self.x)

    @cached_property
    def before(self) -> Tensor:
        """f(x) of the network as the task found it: (b, c)."""
        with torch.no_grad():
            return outputs(self.past, self.x)


Signal: TypeAlias = Callable[[Evidence], Tensor]  # one number for each example, low on data of a new task: (b,)


def squared_differences(evidence: Evidence) -> Tensor:
    """(m_t,i - m_t-1,i)^2 for each output, step 1 of the appendix: (b, c)."""
    likelihood = evidence.likelihood
    return (likelihood.mean(evidence.now) - likelihood.mean(evidence.before)).square()


def distance(evidence: Evidence) -> Tensor:
    """sum_c (m_t - m_t-1)^2: low where the task has not moved the network, as on data it has never seen: (b,)."""
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
                inputs.take(evidence.x, slice(0, self.examples)),
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
        self.examples = examples  # of a minibatch that are looked at
        self.values: Sequence[float] = ()  # what the last minibatch came to
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
        self._last: tuple[Tensor, Tensor] | None = None

    def examine(self, evidence: Evidence, armed: bool = True) -> Verdict:
        squares = squared_differences(evidence).double()
        variance, mean = torch.var_mean(squares, 0)
        error = variance / len(squares)
        t = 0.0 if self._last is None else float(welch(self._last, (mean, error)).mean())
        self._last = mean, error
        self.values = float(mean.sum()), t
        return Verdict.NEW if armed and t > self.threshold else Verdict.SAME

    def state(self) -> dict[str, Any]:
        return {"last": None if self._last is None else [part.tolist() for part in self._last]}

    def restore(self, state: dict[str, Any]) -> None:
        last = [torch.tensor(part, dtype=torch.double) for part in state["last"] or ()]
        self._last = (last[0], last[1]) if last else None


def welch(before: tuple[Tensor, Tensor], now: tuple[Tensor, Tensor]) -> Tensor:
    """Welch's t for each output, from the means and their squared standard errors; 0 where nothing varies: (c,)."""
    drop = before[0] - now[0]
    return torch.where(drop == 0, 0.0, drop / (before[1] + now[1]).sqrt())


@final
class Calibrated(Detector):
    """A new task has begun when `r` minibatches in a row lie below the k-th lowest of the present task's last n.

    Nothing is set by hand: r and k follow from `false_alarm`, the probability for each minibatch that a new task is
    announced there though none began. As long as the task stays the same, its last n values and the next r come in
    any order with the same probability, so the next r all lie below the k-th lowest of the n with probability

        k / (n + 1) * (k + 1) / (n + 2) * ... * (k + r - 1) / (n + r)

    whatever the distribution: heavy tails cost nothing. Of the r that keep this below `false_alarm` divided by the
    number of signals, the one nearest to `patience` is taken, and then the largest k.

    That any order is as likely is an assumption, and this is done for it. Early in a task the values still rise: only
    the younger half of the task's minibatches counts, `window` of them at most. A rise makes alarms rarer. The
    minibatches in doubt are held back untrained, so that all r are seen by the same weights and differ by chance
    alone; nothing is learned from a minibatch of the new task before the old one has been remembered.

    There are two signals, because new data shows in two ways. `distance` is low where the task has not moved the
    network (the paper's insight), even if an earlier task taught it the answers. `fit` is low where its answers are
    wrong, even if the new data is close to the old.
    """

    names = ("distance", "fit")
    FEWEST = 10  # values to compare with

    def __init__(
        self,
        false_alarm: float = 1e-6,
        *,
        patience: int = 4,
        window: int = 250,
        signals: Sequence[Signal] = (distance, fit),
        examples: int | None = 64,
    ) -> None:
        if not 0 < false_alarm < 1:
            raise FrompError(f"false_alarm={false_alarm} is no probability; it must be in (0, 1), such as 1e-6.")
        if patience < 1 or window < 1 or not signals:
            raise FrompError(
                f"patience={patience}, window={window} and {len(signals)} signals are impossible; use at least 1 each."
            )
        self.false_alarm, self.patience, self.window, self.signals = false_alarm, patience, window, tuple(signals)
        super().__init__(examples)

    def begin_task(self) -> None:
        self._age = 0
        self._recent: deque[list[float]] = deque(maxlen=self.window)  # values of the task's minibatches, by signal
        self._held: list[list[float]] = []  # of those in doubt
        self._limits: list[float] = []  # the k-th lowest of each signal, fixed when the doubt began
        self._run = 0  # how many in a row it takes

    def examine(self, evidence: Evidence, armed: bool = True) -> Verdict:
        self.values = values = [float(signal(evidence).mean()) for signal in self.signals]
        if not self._held:
            self._set_limits(armed)
        self._held.append(values)
        below = [max(column) < limit for column, limit in zip(zip(*self._held, strict=True), self._limits, strict=True)]
        if not any(below):
            self._age += len(self._held)
            self._recent.extend(self._held)
            self._held = []
            return Verdict.SAME
        return Verdict.NEW if len(self._held) >= self._run else Verdict.UNSURE

    def _set_limits(self, armed: bool) -> None:
        n = min(self.window, self._age // 2)
        if not armed or n < self.FEWEST:
            self._run, self._limits = 0, [-math.inf] * len(self.signals)
            return
        self._run, k = run_and_rank(n, self.false_alarm / len(self.signals), self.patience)
        recent = list(self._recent)[-n:]
        self._limits = [sorted(column)[k - 1] for column in zip(*recent, strict=True)]

    def state(self) -> dict[str, Any]:
        return {
            "age": self._age, "recent": list(self._recent), "held": list(self._held),
            "limits": list(self._limits) if self._held else [], "run": self._run,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        self._age, self._run = state["age"], state["run"]
        self._held, self._limits = list(state["held"]), list(state["limits"])
        self._recent = deque(state["recent"], maxlen=self.window)


DETECTORS: dict[str, Callable[..., Detector]] = {"calibrated": Calibrated, "welch": Welch}


@lru_cache(maxsize=4096)
def run_and_rank(n: int, false_alarm: float, patience: int) -> tuple[int, int]:
    """The least r >= `patience` and the largest k <= n whose probability, as `Calibrated` gives it, is not above."""
    run = patience
    while in_a_row(n, 1, run) > false_alarm:
        run += 1
    rank = 1
    while rank < n and in_a_row(n, rank + 1, run) <= false_alarm:
        rank += 1
    return run, rank


def in_a_row(n: int, k: int, r: int) -> float:
    """The probability that r values all lie below the k-th lowest of n others, if every order is as likely."""
    return math.prod((k + i) / (n + 1 + i) for i in range(r))
