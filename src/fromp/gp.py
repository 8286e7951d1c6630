"""DNN2GP: the Gaussian process that a trained network is. Eq. (4), (5), (10), appendix "Multiclass setting"."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fromp.curvature import Curvature, ExactGGN
from fromp.derivatives.budget import MEMORY_BUDGET, chunks, tiles
from fromp.derivatives.grams import between, grams
from fromp.derivatives.model import Head, Weights, detached, evaluating, outputs
from fromp.derivatives.tape import Tape
from fromp.foundation import inputs
from fromp.foundation.errors import DataError, DerivativeError, KernelError
from fromp.foundation.examples import Examples
from fromp.foundation.inputs import Inputs
from fromp.likelihoods import Likelihood

EXACT = ExactGGN()


class Prediction(NamedTuple):
    """The GP predictive of y: its mean and its variance, observation term included, both (b, c)."""

    mean: Tensor
    variance: Tensor


def ggn_diagonal(
    model: nn.Module,
    names: tuple[str, ...],
    examples: Examples,
    likelihood: Likelihood,
    head: Head = None,
    memory_budget: int = MEMORY_BUDGET,
    curvature: Curvature = EXACT,
    seed: int = 0,
) -> dict[str, Tensor]:
    """diag sum_i J(x_i)' Lambda(x_i) J(x_i) over a task's data, Eq. (4): one tensor for each named weight.

    curvature: exact, or from directions that are drawn with `seed`.
    """
    generator = torch.Generator().manual_seed(seed)
    examples = curvature.examples(examples, generator)
    weights = detached(model, names)
    diagonal = {  # of half-precision weights in single precision, in which squares neither vanish nor overflow
        name: torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32), requires_grad=False)
        for name, weight in weights.items()
    }
    with evaluating(model):
        for x, _ in chunks(model, weights, examples, head, memory_budget, likelihood.numbers_formed):
            tape = Tape(model, weights, x, head)
            for direction in curvature.directions(likelihood, tape.f.detach(), generator):
                for name, gradient in tape.gradients(direction):
                    gradient.add_squares(diagonal[name])
    for name, total in diagonal.items():
        if not bool(torch.isfinite(total).all()):
            raise DerivativeError(
                f"the derivative of the outputs with respect to '{name}' is not finite; "
                "look for sqrt, log or a division at zero in that layer."
            )
    return {name: total * examples.weight for name, total in diagonal.items()}


def mean(model: nn.Module, x: Inputs, likelihood: Likelihood, head: Head = None) -> Tensor:
    """m(x) = E[y | f(x)], Eq. (10): (b, c)."""
    return likelihood.mean(outputs(model, x, head))


def kernel(
    model: nn.Module,
    x: Inputs,
    likelihood: Likelihood,
    variance: Weights,
    head: Head = None,
    memory_budget: int = MEMORY_BUDGET,
    sketch: int | None = None,
) -> Tensor:
    """K_c[i, j] = grad m_c(x_i)' Diag(v) grad m_c(x_j), Eq. (10), one GP for each output: (c, i, j).

    grad m_c = Lambda^(c) J for the canonical links of the paper, J itself for regression. sketch: where the examples do
    not fit in one tile, so many random combinations of the weights instead of all: K is then right on average.
    """
    return torch.cat(list(kernels(model, x, likelihood, variance, head, memory_budget, sketch)))


def kernels(
    model: nn.Module,
    x: Inputs,
    likelihood: Likelihood,
    variance: Weights,
    head: Head = None,
    memory_budget: int = MEMORY_BUDGET,
    sketch: int | None = None,
) -> Iterator[Tensor]:
    """The same, as many outputs at a time as the budget allows: (c', i, j) each."""
    weights, lambdas = detached(model, tuple(variance)), likelihood.numbers_formed
    with evaluating(model):
        each = partial(slopes, likelihood)
        yield from grams(
            model, weights, x, head, each, likelihood.slope, variance, memory_budget, sketch, lambdas
        )  # fmt: skip


def cross_kernel(
    model: nn.Module,
    x: Inputs,
    z: Inputs,
    likelihood: Likelihood,
    variance: Weights,
    head: Head = None,
    memory_budget: int = MEMORY_BUDGET,
) -> Tensor:
    """K_c[i, j] = grad m_c(x_i)' Diag(v) grad m_c(z_j), Eq. (10) between two sets of inputs: (c, i, j)."""
    weights, rows = detached(model, tuple(variance)), []
    with evaluating(model):
        columns = list(tiles(model, weights, z, head, memory_budget // 2))
        for part in tiles(model, weights, x, head, memory_budget // 2):
            left = Tape(model, weights, part, head)
            rights = (Tape(model, weights, column, head) for column in columns)
            rows.append(torch.cat([_block(left, right, likelihood, variance, memory_budget) for right in rights], -1))
    return torch.cat(rows, -2)


def predict(
    model: nn.Module,
    x: Inputs,
    likelihood: Likelihood,
    variance: Weights,
    head: Head = None,
    memory_budget: int = MEMORY_BUDGET,
) -> Prediction:
    """E[y] = m(x), Var[y_c] = K_c(x, x) + Var[y_c | f(x)], the appendix's predictive for one GP per output."""
    f, k = marginals(model, x, likelihood, variance, head, memory_budget)
    return Prediction(likelihood.mean(f), k + likelihood.noise(f))


def marginals(
    model: nn.Module,
    x: Inputs,
    likelihood: Likelihood,
    variance: Weights,
    head: Head = None,
    memory_budget: int = MEMORY_BUDGET,
) -> tuple[Tensor, Tensor]:
    """f(x) and K_c(x, x), Eq. (10) at each input alone: (b, c), (b, c)."""
    if inputs.num_examples(x) == 0:
        raise DataError("there is nothing to predict: x holds no examples.")
    weights = detached(model, tuple(variance))
    found, variances = [], []
    with evaluating(model):
        for part in tiles(model, weights, x, head, memory_budget, likelihood.numbers_formed):
            tape = Tape(model, weights, part, head)
            f = tape.f.detach()
            columns = []
            for slope in slopes(likelihood, f):
                of_weights = (g.weighted_squares(variance[name]) for name, g in tape.gradients(slope))
                columns.append(sum(of_weights, torch.zeros_like(f[:, 0])))
            found.append(f)
            variances.append(torch.stack(columns, -1))
    return torch.cat(found), torch.cat(variances)


def inverse(kernel: Tensor, jitter: float | Tensor) -> Tensor:
    """(K + jitter I)^-1 for each output, in double precision throughout: (c, i, j). One jitter for all, or (c,)."""
    return torch.cholesky_inverse(cholesky(kernel, jitter))


def inverses(kernels: Iterator[Tensor], jitter: float | Tensor) -> Iterator[Tensor]:
    """The same for some outputs at a time, so that no more of them exist in double precision."""
    yield from map(torch.cholesky_inverse, factors(kernels, jitter))


def factors(kernels: Iterator[Tensor], jitter: float | Tensor) -> Iterator[Tensor]:
    """Their `cholesky` for some outputs at a time."""
    start = 0
    for k in kernels:
        some = jitter[start : start + len(k)] if isinstance(jitter, Tensor) else jitter
        yield cholesky(k, some, start)
        start += len(k)


def cholesky(kernel: Tensor, jitter: float | Tensor, first: int = 0) -> Tensor:
    """The lower factor of K + jitter I for each output, in double precision: (c, i, j). One jitter for all, or (c,).

    first: the number of the first of the outputs, for errors.
    """
    if not bool(torch.isfinite(kernel).all()):
        raise KernelError(
            "the kernel is not finite; look for derivatives that are not, or a prior_precision near zero."
        )
    jitters = torch.as_tensor(jitter, dtype=torch.double, device=kernel.device).expand(len(kernel))
    regular = kernel.to(torch.double, copy=True)
    regular.diagonal(dim1=-2, dim2=-1).add_(jitters[:, None])
    factor, failed = torch.linalg.cholesky_ex(regular)
    if bool(failed.any()):
        output = int(failed.nonzero()[0])
        smallest = float(torch.linalg.eigvalsh(kernel[output].double())[0])
        raise KernelError(
            f"the kernel of output {first + output} is not positive definite: its smallest eigenvalue is "
            f"{smallest:.3g} and jitter={float(jitters[output]):g} does not lift it above zero; use a jitter "
            f"well above {abs(smallest):.1g}."
        )
    return factor


def _block(left: Tape, right: Tape, likelihood: Likelihood, variance: Weights, memory_budget: int) -> Tensor:
    """The kernel between the examples of two tapes: (c, i, j)."""
    both = zip(slopes(likelihood, left.f.detach()), slopes(likelihood, right.f.detach()), strict=True)
    return between(left, right, both, left.f.shape[1], variance, memory_budget)


def slopes(likelihood: Likelihood, f: Tensor) -> Iterator[Tensor]:
    """d m_c / d f for each output c in turn: (b, c)."""
    with torch.enable_grad():
        f = f.detach().requires_grad_()
        m = likelihood.mean(f)
        for c in range(m.shape[-1]):
            (slope,) = torch.autograd.grad(m[:, c].sum(), f, retain_graph=True)
            yield slope
