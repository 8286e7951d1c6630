"""Approximation 2: the term of Eq. (7) that the paper leaves out, with its derivative through the Jacobians."""

import torch
from torch import Tensor

from fromp.derivatives.model import Weights
from fromp.lab.methods.relaxed.covariance import Covariance
from fromp.lab.methods.relaxed.rows import Prior


def trace(prior: Prior, m: Tensor, weights: Weights, covariance: Covariance, directions: Tensor) -> Tensor:
    """Tr K^-1 K(w) = sum_k |Sigma^(1/2) (d m / d w)' R z_k|^2, R R' = K^-1: a scalar.

    directions: z with sum_k z_k z_k' = I, at least on average; each takes one backward pass, and one through that.
    m: the rows at the weights, with their graph.
    """
    total = torch.zeros_like(m[0])
    for z in directions:
        found = torch.autograd.grad(
            m @ prior.whitened(z), list(weights.values()), create_graph=True, materialize_grads=True
        )
        total = total + covariance.root({n: g[None] for n, g in zip(weights, found, strict=True)}).square().sum()
    return total


def directions(count: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """z with E[sum_k z_k z_k'] = I: random signs, or, if as many as there are rows, the unit vectors: (k, rows)."""
    if count >= len(like):
        return torch.eye(len(like)).to(like)
    signs = torch.randint(0, 2, (count, len(like)), generator=generator).to(like) * 2 - 1
    return signs / count**0.5
