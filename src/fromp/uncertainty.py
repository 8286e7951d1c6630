"""How much a network knows at an input: its GP with the memory as data."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from fromp import gp
from fromp.derivatives.budget import MEMORY_BUDGET
from fromp.derivatives.model import Head, Weights, evaluating, outputs
from fromp.foundation import inputs
from fromp.foundation.errors import DataError, FrompError
from fromp.foundation.examples import TensorExamples, labelled
from fromp.foundation.inputs import Inputs, constants
from fromp.likelihoods import Gaussian, Likelihood
from fromp.memory import Memory

AS_IT_IS = Gaussian()  # m = f: the kernel of the outputs themselves


class Latent(NamedTuple):
    """The GP's belief about the outputs: f and its variance, both (b, c)."""

    mean: Tensor
    variance: Tensor


class Interval(NamedTuple):
    """Where a label lies with a stated probability: both (b, c)."""

    lower: Tensor
    upper: Tensor


@final
class Uncertainty:
    """f | memory, of the network made linear at its present weights w, with w' ~ N(w, v):

        s2_c(x) = k(x, x) - k(x, M) (k(M, M) + 1 / Lambda_cc)^-1 k(M, x),  k = J Diag(v) J', one GP for each output

    It is small near what is remembered and grows away from it. `FROMP.uncertainty` makes one.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        memories: Sequence[Memory],
        variance: Weights,
        head: Head,
        prepare: Callable[[Any], Inputs],
        memory_budget: int = MEMORY_BUDGET,
    ) -> None:
        self._model, self._likelihood, self._variance, self._head = model, likelihood, variance, head
        self._prepare, self._memory_budget = prepare, memory_budget
        self._scale: Tensor | float = 1.0  # multiplies the variance of a label; `calibrated` sets it
        self._points = _joined(memories)
        with evaluating(model), torch.no_grad():
            f = torch.cat([outputs(model, points, head) for points in self._points])
        self._root = _precision(likelihood, f).sqrt().T.double()  # (c, i)
        rows = [torch.cat([self._kernel(left, right) for right in self._points], -1) for left in self._points]
        k = torch.cat(rows, -2)
        whole = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device) + self._weighted(k)
        self._factor = torch.linalg.cholesky(whole)  # I + Lambda^1/2 k Lambda^1/2 is never singular

    def latent(self, x: Any) -> Latent:
        """f(x) and s2(x): (b, c), (b, c)."""
        x = self._prepare(x)
        f, own = gp.marginals(self._model, x, AS_IT_IS, self._variance, self._head, self._memory_budget)
        across = (
            torch.cat([self._kernel(points, x) for points in self._points], -2) * self._root[..., None]
        )  # (c, i, b)
        known = torch.linalg.solve_triangular(self._factor, across, upper=False).square().sum(-2).T
        return Latent(f, (own.double() - known).clamp_min(0).to(f.dtype))

    def novelty(self, x: Any) -> Tensor:
        """How little is known at x, from 0 to 1, to rank inputs by: `Likelihood.novelty`, (b,)."""
        return self._likelihood.novelty(*self.latent(x))

    def interval(self, x: Any, level: float = 0.9) -> Interval:
        """f(x) -+ z sqrt(s2(x) + noise), which holds the label with probability `level`: for regression.

        The noise is that of the `Gaussian`. What it is told, and a weight precision of 1, are guesses: `calibrated`
        replaces them by what was seen.
        """
        self._for_regression("intervals are")
        if not 0 < level < 1:
            raise FrompError(f"level={level} is not a probability between 0 and 1, such as 0.9.")
        f, variance = self.latent(x)
        z = 2**0.5 * float(torch.erfinv(torch.tensor(level, dtype=torch.double)))
        reach = z * (self._scale * (variance + self._likelihood.noise(f))).sqrt()
        return Interval(f - reach, f + reach)

    def calibrated(self, x: Any, y: Any) -> "Uncertainty":
        """The same, with intervals that fit held-out data: (s2 + noise) times a scale of each output, which is

            scale_c = mean (y_c - f_c(x))^2 / (s2_c(x) + noise)

        the most likely one, if the noise and the variance of the weights are known up to a common factor.
        """
        self._for_regression("calibrated() is")
        examples = TensorExamples(*labelled((x, y)))
        f, variance = self.latent(examples.x)
        self._likelihood.check_labels(examples.y, f.shape[-1])
        errors = (examples.y.to(f).reshape(f.shape) - f).square()
        found = copy(self)
        found._scale = (errors / (variance + self._likelihood.noise(f))).mean(0)
        return found

    def _for_regression(self, what: str) -> None:
        if not isinstance(self._likelihood, Gaussian):
            raise FrompError(f"{what} for Gaussian(), and the likelihood is {type(self._likelihood).__name__}().")

    def _kernel(self, x: Inputs, z: Inputs) -> Tensor:
        if x is z:
            return gp.kernel(self._model, x, AS_IT_IS, self._variance, self._head, self._memory_budget)
        return gp.cross_kernel(self._model, x, z, AS_IT_IS, self._variance, self._head, self._memory_budget)

    def _weighted(self, k: Tensor) -> Tensor:
        return self._root[:, :, None] * k * self._root[:, None, :]


def those_of(memories: Sequence[Memory], head: Head, keywords: Mapping[str, Any]) -> list[Memory]:
    """The memories that say something of a head; an error if there are none."""
    found = [memory for memory in memories if _covers(memory.head, head) and constants(memory.inputs) == keywords]
    if not found:
        known = ", ".join(sorted({str(list(memory.head)) if memory.head else "all" for memory in memories}))
        raise DataError(
            f"nothing is remembered of head {'all' if head is None else list(head)}"
            + "".join(f", {name}={value!r}" for name, value in keywords.items())
            + (f"; the memory is of {known}." if memories else "; call end_task first.")
        )
    return found


def _covers(theirs: Head, head: Head) -> bool:
    return theirs is None or (head is not None and set(head) <= set(theirs))


def _joined(memories: Sequence[Memory]) -> list[Inputs]:
    """The remembered inputs, those of one shape in one piece."""
    groups: dict[tuple, list[Inputs]] = {}
    for memory in memories:
        groups.setdefault(inputs.signature(memory.inputs), []).append(memory.inputs)
    return [inputs.concatenate(group) for group in groups.values()]


def _precision(likelihood: Likelihood, f: Tensor) -> Tensor:
    """Lambda_cc, the precision with which a label fixes each output: (b, c)."""
    return likelihood.hessian(f).diagonal(dim1=-2, dim2=-1)
