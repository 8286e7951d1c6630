"""What forms of a kept kernel that take less memory are off by, in what a step computes from them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fromp import gp
from fromp.curvature import SignGGN
from fromp.derivatives.model import trainable
from fromp.foundation.examples import TensorExamples
from fromp.lab.bench.many_examples import learned
from fromp.lab.bench.signs import moved_gradient
from fromp.likelihoods import Categorical
from fromp.metrics.full_kernel import FullKernel
from fromp.metrics.half_kernel import HalfKernel

CLASSES, EXAMPLES, POINTS = 10, 4000, 200
PRECISION, JITTERS, DRAWS = 1e-3, (1e-3, 1e-6), 20
Solve = Callable[[Tensor], Tensor]  # d -> K^-1 d


def kept_errors() -> list[dict[str, Any]]:
    """The errors of d' K^-1 d and K^-1 d for random d, and of the penalty's gradient where weights have moved a little.

    The ways are those of the library in single and half precision, K^-1 itself in bfloat16, and its eigenvectors of the
    half that is largest in K^-1.
    """
    model, x, y = learned("mnist", EXAMPLES)
    memory = x[torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(1))[:POINTS]]
    precision = gp.ggn_diagonal(model, trainable(model), TensorExamples(x, y), Categorical(), curvature=SignGGN())
    variance = {name: 1 / (PRECISION + value) for name, value in precision.items()}
    k = gp.kernel(model, memory, Categorical(), variance)
    rows = []
    for jitter in JITTERS:
        exact = gp.inverse(k, jitter)
        d = torch.randn(DRAWS, CLASSES, POINTS, generator=torch.Generator().manual_seed(2))
        truth = _found(partial(_doubly, exact), d)
        gradient = moved_gradient(model, memory, partial(_doubly, exact))
        for name, (solve, taken) in _ways(k, jitter, exact).items():
            found = _found(solve, d)
            off = moved_gradient(model, memory, solve) - gradient
            rows.append(
                {
                    "way": name,
                    "jitter": jitter,
                    "bytes": taken,
                    "relative_error": {
                        "distance": float(((found[0] - truth[0]) / truth[0]).abs().mean()),
                        "solution": float((found[1] - truth[1]).norm() / truth[1].norm()),
                        "gradient": float(off.norm() / gradient.norm()),
                    },
                }
            )
    return rows


def _ways(k: Tensor, jitter: float, exact: Tensor) -> dict[str, tuple[Solve, int]]:
    size = CLASSES * POINTS**2
    full, half = (kernel.of(lambda: iter([k]), jitter, torch.float32) for kernel in (FullKernel, HalfKernel))
    rounded = exact.to(torch.bfloat16).float()
    values, vectors = torch.linalg.eigh(exact)
    largest = POINTS // 2
    low = (vectors[..., -largest:] * values[..., None, -largest:].sqrt()).float()
    return {
        "`FullKernel`": (_of_kernel(full), 4 * size),
        "`HalfKernel`": (_of_kernel(half), HalfKernel.bytes_held(CLASSES, POINTS, 4)[0]),
        "K^-1 in bfloat16": (lambda d: _times(rounded, d), 2 * size),
        "K^-1 of half the rank": (lambda d: _times(low, _times(low.mT, d)), 2 * size),
    }


def _of_kernel(kernel: FullKernel | HalfKernel) -> Solve:
    return lambda d: torch.cat([kernel.solve(one[None]) for one in d.reshape(-1, CLASSES, POINTS)]).view_as(d)


def _times(matrix: Tensor, d: Tensor) -> Tensor:
    return torch.einsum("cij,...cj->...ci", matrix, d)


def _doubly(matrix: Tensor, d: Tensor) -> Tensor:
    return _times(matrix, d.double())


def _found(solve: Solve, d: Tensor) -> tuple[Tensor, Tensor]:
    u = solve(d).double()
    return (d * u).sum((-2, -1)), u
