"""Approximation 3: which rows of f, one per task, output and remembered point, the functional prior correlates.

The paper takes one kernel per task and, in the multiclass appendix, per class.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from fromp import gp
from fromp.derivatives.model import Weights, evaluating, of_head, outputs_of_parts
from fromp.derivatives.tape import Tape
from fromp.foundation import inputs
from fromp.likelihoods import Likelihood
from fromp.memory import Memory

CHUNK = 200  # points whose gradients are written out at a time


def means(model: nn.Module, memories: Sequence[Memory], likelihood: Likelihood) -> Tensor:
    """m at every remembered point, task by task, output by output: (rows,)."""
    with evaluating(model):
        every = outputs_of_parts(model, [memory.inputs for memory in memories])
    found = (likelihood.mean(of_head(f, memory.head)) for f, memory in zip(every, memories, strict=True))
    return torch.cat([m.T.flatten() for m in found])


def linearised(
    model: nn.Module, weights: Weights, names: Sequence[str], memory: Memory, likelihood: Likelihood
) -> tuple[Tensor, dict[str, Tensor]]:
    """One task's rows of m, and their gradients for some of the weights: (rows,), (rows, *weight) for each."""
    found, parts = [], []
    with evaluating(model):
        for x in inputs.split(memory.inputs, CHUNK):
            tape = Tape(model, weights, x, memory.head)
            f = tape.f.detach()
            found.append(likelihood.mean(f).T)  # (c, i)
            rows = []
            for slope in gp.slopes(likelihood, f):
                row = {name: torch.zeros(len(f), *weights[name].shape).to(f) for name in names}
                rows.append(row | {n: gradient.dense().g for n, gradient in tape.gradients(slope) if n in row})
            parts.append({name: torch.stack([row[name] for row in rows]) for name in names})  # (c, i, *weight)
    gradients = {name: torch.cat([part[name] for part in parts], 1).flatten(0, 1).detach() for name in names}
    return torch.cat(found, 1).flatten(), gradients


def groups(memories: Sequence[Memory], widths: Sequence[int], across_tasks: bool, across_classes: bool) -> list[Tensor]:
    """The rows that one kernel ties together, for each kernel.

    Across tasks, the k-th outputs of all heads go together: the same class where tasks share a head.
    """
    found: dict[tuple[int | None, int | None], list[int]] = {}
    row = 0
    for task, (memory, width) in enumerate(zip(memories, widths, strict=True)):
        for output in range(width):
            key = None if across_tasks else task, None if across_classes else output
            found.setdefault(key, []).extend(range(row, row + len(memory)))
            row += len(memory)
    return [torch.tensor(rows) for rows in found.values()]


@final
@dataclass(frozen=True)
class Prior:
    """q~(f): where the means were, and for each kernel its rows and the factor L of K + jitter I = L L'."""

    mean: Tensor  # (rows,)
    rows: list[Tensor]  # (g,) for each kernel
    factors: list[Tensor]  # (g, g) for each kernel
    inverses: list[Tensor]  # (g, g) for each kernel

    @classmethod
    def of(cls, mean: Tensor, root: Tensor, rows: list[Tensor], jitter: float) -> "Prior":
        """From the roots of the covariance of all rows, (rows, w)."""
        kernels = [(root[own] @ root[own].T)[None] for own in rows]
        factors = [gp.cholesky(k, jitter)[0] for k in kernels]
        return cls.restored(mean, rows, [factor.to(mean.dtype) for factor in factors])

    @classmethod
    def restored(cls, mean: Tensor, rows: list[Tensor], factors: list[Tensor]) -> "Prior":
        """From what is saved."""
        inverses = [torch.cholesky_inverse(factor.double()).to(mean.dtype) for factor in factors]
        return cls(mean, rows, factors, inverses)

    def squared_distance(self, m: Tensor) -> Tensor:
        """(m - m0)' K^-1 (m - m0) over all kernels: a scalar."""
        parts = ((m[own] - self.mean[own], inverse) for own, inverse in zip(self.rows, self.inverses, strict=True))
        return torch.stack([d @ inverse @ d for d, inverse in parts]).sum()

    def whitened(self, z: Tensor) -> Tensor:
        """R z with R R' = K^-1, so that E[(R z)(R z)'] = K^-1 for z of independent signs: (rows,)."""
        found = torch.zeros_like(z)
        for own, factor in zip(self.rows, self.factors, strict=True):
            found[own] = torch.linalg.solve_triangular(factor.T, z[own, None], upper=True)[:, 0]
        return found
