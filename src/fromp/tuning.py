"""Which tau to take, from held-out data of the present task and from the memory, without a test set."""

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from fromp.derivatives.budget import chunks
from fromp.derivatives.keywords import WithKeywords, checked_keywords
from fromp.derivatives.model import Head, as_head, detached, device_of, dtype_of, evaluating, outputs, trainable
from fromp.foundation.collectives import ALONE
from fromp.foundation.errors import FrompError, FrompWarning
from fromp.foundation.examples import Examples, TaskData, TensorExamples, as_examples
from fromp.foundation.inputs import Constant
from fromp.memory import Memory
from fromp.prior import FunctionalPrior
from fromp.regulariser import FROMP

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # times the present tau


@dataclass(frozen=True)
class Suggestion:
    """The best tau, and for each one that was tried the nll on what it has not seen: of each past task, then here."""

    tau: float
    nll: dict[float, list[float]]

    def __str__(self) -> str:
        """One line per tau: the mean over all tasks, of the past, and of the present one."""
        lines = ["       tau   all tasks        past     present"]
        for tau, (*past, present) in self.nll.items():
            means = _mean([*past, present]), _mean(past), present
            lines.append(f"{tau:10.4g}" + "".join(f"{m:12.4f}" for m in means) + ("  <-" if tau == self.tau else ""))
        return "\n".join(lines)


@final
class Trial:
    """A penalty of some tau on half of the memory, to train with while the other half is measured."""

    def __init__(self, model: nn.Module, network: nn.Module, prior: FunctionalPrior, tau: float) -> None:
        self.model, self.tau, self.penalties = model, tau, 0
        self._network, self._prior = network, prior

    def penalty(self) -> Tensor:
        """tau / 2 times the squared distance from where the task began, at half of the points."""
        self.penalties += 1
        return 0.5 * self.tau * self._prior.squared_distance(self._network)


def suggest_tau(
    reg: FROMP,
    train: Callable[[Trial], object],
    held_out: TaskData,
    head: Sequence[int] | None = None,
    taus: Sequence[float] | None = None,
    **keywords: Constant,
) -> Suggestion:
    """The tau after whose training the mean over all tasks of the nll on unseen examples is lowest.

        def train(reg):  # the present task, as it will be trained: with the penalty of what is given
            ...; loss = cross_entropy(model(x), y) + reg.penalty(); ...

        reg.tau = suggest_tau(reg, train, (x_held_out, y_held_out)).tau

    Call it where the task begins. Each past task's memory is divided: one half holds the network in the trial, the
    other half, with its labels, stands for what else the task knew. `held_out` stands for the present task. It costs
    one run of `train` per tau, and the kernels of half the memory once. Every run begins with the model's present
    weights and random state, and they are put back afterwards; `reg` is left alone.

    taus: those to try; the present one times 0.1, 0.3, 1, 3 and 10 unless given. head, keywords: as for `end_task`.
    """
    if not isinstance(reg, FROMP):
        raise FrompError(
            f"suggest_tau is for FROMP, and {type(reg).__name__} has no tau; try several strengths on held-out data."
        )
    examples = reg._keep.of(as_examples(held_out, dtype_of(reg._network)), device_of(reg._network))
    if keywords:
        examples = WithKeywords(examples, reg._network, dict(checked_keywords(reg._network, "suggest_tau", keywords)))
    tried = [float(tau) for tau in (taus if taus is not None else [reg.tau * factor for factor in FACTORS])]
    if not tried or not all(0 <= tau < math.inf for tau in tried) or len(set(tried)) < len(tried):
        raise FrompError(f"taus={tried} must be different finite numbers, zero or positive, and at least one.")
    held, unseen = _halves(reg.memories)
    if not unseen:
        raise FrompError(
            "there is no past task of which two points are remembered, so that nothing tells how much of it a tau "
            "keeps; end a task first."
        )
    with torch.no_grad():
        reg.penalty()  # says what is wrong with the model, and takes what has grown in it
    network = reg._network
    prior = reg._prior_at(held, reg.precision, ALONE)
    past: list[tuple[Examples, Head]] = [(TensorExamples(m.inputs, m.labels), m.head) for m in unseen]
    measured = [*past, (examples, as_head(head))]
    # A fixed jitter weighs a sum over the points, of which a trial has fewer; the default one weighs their mean.
    share = 1.0 if reg.jitter is None else sum(map(len, reg.memories)) / sum(map(len, held))
    put_back = _snapshot(network)
    nll: dict[float, list[float]] = {}
    for tau in tried:
        trial = Trial(reg.model, network, prior, tau * share)
        try:
            with torch.random.fork_rng():
                train(trial)
            nll[tau] = [_nll(reg, data, of) for data, of in measured]
        finally:
            put_back()
        if trial.penalties == 0:
            raise FrompError("train never called penalty() of what it was given; add it to the loss there.")
    best = min(nll, key=lambda tau: _mean(nll[tau]))
    if not math.isfinite(_mean(nll[best])):
        raise FrompError(f"training diverged with every tau of {tried}; lower the learning rate, or clip the gradient.")
    if len(tried) > 1 and best in (min(tried), max(tried)):
        warnings.warn(
            f"the best tau, {best:g}, is at the {'lower' if best == min(tried) else 'upper'} end of those tried; one "
            "beyond it may be better: give taus=...",
            FrompWarning,
            stacklevel=2,
        )
    return Suggestion(best, nll)


def _snapshot(model: nn.Module) -> Callable[[], None]:
    """What puts back the model's weights, buffers, gradients and modes."""
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    gradients = [None if w.grad is None else w.grad.clone() for w in model.parameters()]

    def put_back() -> None:
        model.load_state_dict(state)
        for module, mode in zip(model.modules(), modes, strict=True):
            module.training = mode
        for weight, gradient in zip(model.parameters(), gradients, strict=True):
            weight.grad = None if gradient is None else gradient.clone()

    return put_back


def _halves(memories: Sequence[Memory]) -> tuple[list[Memory], list[Memory]]:
    """Every other point, which in the order of `per_class` are as many of each class: to hold, and to measure at."""
    halves = [[memory.take(torch.arange(start, len(memory), 2)) for memory in memories] for start in (0, 1)]
    return halves[0], [memory for memory in halves[1] if len(memory)]


def _nll(reg: FROMP, examples: Examples, head: Head) -> float:
    """The mean nll of some examples; infinity where it is not finite."""
    model, likelihood = reg._network, reg.likelihood
    total, weights = 0.0, detached(model, trainable(model))
    with evaluating(model), torch.no_grad():
        for x, y in chunks(model, weights, examples, head, reg._budget):
            f = outputs(model, x, head)
            likelihood.check_labels(y, f.shape[1])
            total += float(likelihood.nll(f, y).sum())
    return total / len(examples) if math.isfinite(total) else math.inf


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
