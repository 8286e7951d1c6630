"""What distinguishes a new task from the current one: the network now, the network at the task's start, and signals."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor, nn

from fromp import gp
from fromp.derivatives.model import evaluating, outputs, trainable
from fromp.foundation import inputs
from fromp.foundation.errors import FrompError
from fromp.foundation.examples import Batch
from fromp.foundation.inputs import Inputs
from fromp.likelihoods import Likelihood
from fromp.regulariser import FROMP
from fromp.taskfree.ranks import chance_of_lower, chance_of_lower_mean

REFERENCE_EXAMPLES = 2000  # examples of the current task to compare those held back with


class Evidence:
    """A minibatch that has not been trained on, the network now and the network at the start of the current task."""

    def __init__(
        self,
        model: nn.Module,
        past: nn.Module,
        likelihood: Likelihood,
        x: Inputs,
        y: Tensor,
        examples: int | None = None,  # how many of the minibatch the networks are run on; None for all
        f: Tensor | None = None,  # f(x) of the whole minibatch, if it is known; saves one forward pass
        held: Sequence[Batch] = (),  # the minibatches held back before this one, untrained
        sample: Callable[[], Batch] | None = None,  # draws examples of the current task
    ) -> None:
        self.model, self.past, self.likelihood = model, past, likelihood
        self.few, self._f = inputs.take(x, slice(0, examples)), f
        self.y = y[:examples] if f is None else y
        self._last, self._held, self._sample = (x, y), held, sample

    @cached_property
    def now(self) -> Tensor:
        """f of the network now: (b, c)."""
        if self._f is not None:
            return self._f.detach()
        with evaluating(self.model), torch.no_grad():
            return outputs(self.model, self.few)

    @cached_property
    def nll(self) -> Tensor:
        """nll of each label under the network now, differentiable if f is: (b,)."""
        return self.likelihood.nll(self.now if self._f is None else self._f, self.y)

    @cached_property
    def before(self) -> Tensor:
        """f of the network at the start of the task, for the first few: (few, c)."""
        with evaluating(self.past), torch.no_grad():
            return outputs(self.past, self.few)

    def chance(self, signal: "Signal", minibatches: int) -> float:
        """P of a signal as low as it is on the last minibatches, if they belonged to the current task like its sample.

        One network sees both, so that it makes no difference how good it is at the moment. Low is a low rank sum, if
        most examples are a little worse off, or a low mean, if few are and those much; P is doubled for the choice.
        Returns 0 if no reference sample is given.
        """
        if self._sample is None:
            return 0.0
        doubtful = [*self._held, self._last][-minibatches:]
        x, y = self._sample()
        size = max(len(labels) for _, labels in doubtful)
        places = torch.arange(min(len(y), REFERENCE_EXAMPLES)).split(max(size, 32))
        known = [(inputs.take(x, part), y[part]) for part in places]
        at_doubtful, at_known = (torch.cat([signal(self._at(*batch)) for batch in of]) for of in (doubtful, known))
        return min(1.0, 2 * min(test(at_doubtful, at_known) for test in (chance_of_lower, chance_of_lower_mean)))

    def _at(self, x: Inputs, y: Tensor) -> "Evidence":
        """The same networks at other examples."""
        return Evidence(self.model, self.past, self.likelihood, x, y)


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
    return torch.sigmoid(-evidence.nll.detach())


def jeffreys(one: gp.Prediction, other: gp.Prediction) -> Tensor:
    """KL(p, q) + KL(q, p) of the Gaussians N(m, v) of each output: (b, c)."""
    apart = (one.mean - other.mean).square()
    return 0.5 * ((one.variance + apart) / other.variance + (other.variance + apart) / one.variance) - 1


def divergence_of(regulariser: FROMP) -> Signal:
    """What the appendix proposes: sum_c log(1 + Jeffreys) of the full GP predictives of the two networks: (few,).

    Both have the precision that the past tasks left, or the prior's before any has ended. Eq. (9) adds the present
    task's share when that is over; an estimate of it before would lag behind the weights, and a divergence that falls
    as it ages looks like a new task. The variances take one backward pass per output and network.
    """
    if not isinstance(regulariser, FROMP):
        raise FrompError(
            f"{type(regulariser).__name__} keeps no precision of the weights, which a divergence is made of; "
            "use FROMP, or another detector."
        )

    def divergence(evidence: Evidence) -> Tensor:
        variance = regulariser.variance(trainable(regulariser.model))
        now, before = (
            gp.predict(model, evidence.few, evidence.likelihood, variance) for model in (evidence.model, evidence.past)
        )
        return jeffreys(now, before).log1p().sum(-1)

    return divergence
