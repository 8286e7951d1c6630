"""DNN2GP: the Gaussian process that a trained network is. Eq. (4), (5), (10), appendix "Multiclass setting"."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fromp.curvature import Curvature, ExactGGN
from fromp.derivatives.budget import MEMORY_BUDGET, chunks, tiles
from fromp.derivatives.gradients import Outer, outer_grams
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
        for x, _ in chunks(model, weights, examples, head, memory_budget):
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
) -> Tensor:
    """K_c[i, j] = grad m_c(x_i)' Diag(v) grad m_c(x_j), Eq. (10), one GP for each output: (c, i, j).

    grad m_c = Lambda^(c) J for the canonical links of the paper, J itself for regression.
    """
    weights = detached(model, tuple(variance))
    with evaluating(model):
        parts = list(tiles(model, weights, x, head, memory_budget // 2))  # two of them at a time
        blocks: dict[tuple[int, int], Tensor] = {}
        for i, rows in enumerate(parts):
            left = Tape(model, weights, rows, head)
            for j, columns in enumerate(parts[: i + 1]):
                right = left if i == j else Tape(model, weights, columns, head)
                blocks[i, j] = _block(left, right, likelihood, variance, memory_budget)
                blocks[j, i] = blocks[i, j].mT
    n = len(parts)
    return torch.cat([torch.cat([blocks[i, j] for j in range(n)], -1) for i in range(n)], -2)


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
        for part in tiles(model, weights, x, head, memory_budget):
            tape = Tape(model, weights, part, head)
            f = tape.f.detach()
            columns = []
            for slope in _slopes(likelihood, f):
                of_weights = (g.weighted_squares(variance[name]) for name, g in tape.gradients(slope))
                columns.append(sum(of_weights, torch.zeros_like(f[:, 0])))
            found.append(f)
            variances.append(torch.stack(columns, -1))
    return torch.cat(found), torch.cat(variances)


def inverse(kernel: Tensor, jitter: float | Tensor) -> Tensor:
    """(K + jitter I)^-1 for each output, in double precision throughout: (c, i, j). One jitter for all, or (c,)."""
    return torch.cholesky_inverse(cholesky(kernel, jitter))


def cholesky(kernel: Tensor, jitter: float | Tensor) -> Tensor:
    """The lower factor of K + jitter I for each output, in double precision: (c, i, j). One jitter for all, or (c,)."""
    if not bool(torch.isfinite(kernel).all()):
        raise KernelError(
            "the kernel is not finite; look for derivatives that are not, or a prior_precision near zero."
        )
    jitters = torch.as_tensor(jitter, dtype=torch.double, device=kernel.device).expand(len(kernel))
    eye = torch.eye(kernel.shape[-1], dtype=torch.double, device=kernel.device)
    regular = kernel.double() + jitters[:, None, None] * eye
    factor, failed = torch.linalg.cholesky_ex(regular)
    if bool(failed.any()):
        output = int(failed.nonzero()[0])
        smallest = float(torch.linalg.eigvalsh(kernel[output].double())[0])
        raise KernelError(
            f"the kernel of output {output} is not positive definite: its smallest eigenvalue is {smallest:.3g} "
            f"and jitter={float(jitters[output]):g} does not lift it above zero; use a jitter well above "
            f"{abs(smallest):.1g}."
        )
    return factor


def _block(left: Tape, right: Tape, likelihood: Likelihood, variance: Weights, memory_budget: int) -> Tensor:
    """The kernel between the examples of two tapes: (c, i, j)."""
    slopes = list(zip(_slopes(likelihood, left.f.detach()), _slopes(likelihood, right.f.detach()), strict=True))
    total = torch.zeros(len(slopes), len(left.f), len(right.f), dtype=torch.double, device=left.f.device)
    outer: dict[str, tuple[list[Outer], list[Outer]]] = {}
    for c, (at_left, at_right) in enumerate(slopes):
        # One output at a time: the gradients of all of them at once would be classes times larger.
        g = dict(left.gradients(at_left))
        h = g if right is left else dict(right.gradients(at_right))
        for name in (name for name in g if name in h):
            gi, hj = g[name], h[name]
            if isinstance(gi, Outer) and isinstance(hj, Outer):  # small enough to wait for the other outputs
                both = outer.setdefault(name, ([], []))
                both[0].append(gi)
                both[1].append(hj)
                continue
            if type(gi) is not type(hj):  # a layer that sees every example of one part, and some of the other
                gi, hj = gi.dense(), hj.dense()
            total[c] += gi.gram(hj, variance[name])
    for name, (gs, hs) in outer.items():
        total += outer_grams(gs, gs if right is left else hs, variance[name], memory_budget)
    return total


def _slopes(likelihood: Likelihood, f: Tensor) -> Iterator[Tensor]:
    """d m_c / d f for each output c in turn: (b, c)."""
    with torch.enable_grad():
        f = f.detach().requires_grad_()
        m = likelihood.mean(f)
        for c in range(m.shape[-1]):
            (slope,) = torch.autograd.grad(m[:, c].sum(), f, retain_graph=True)
            yield slope
