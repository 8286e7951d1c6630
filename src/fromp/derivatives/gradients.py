"""Gradients of many examples at once, each in the smallest form that holds it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


class Gradient(ABC):
    """d (s . f(x_i)) / d weight for every example i of a chunk, in the smallest form that holds it."""

    @abstractmethod
    def wide(self) -> "Gradient":
        """The same in single precision at least, in which squares neither vanish nor overflow."""

    @abstractmethod
    def sum_of_squares(self) -> Tensor:
        """sum_i g_i^2, elementwise: the weight's own shape."""

    @abstractmethod
    def weighted_squares(self, variance: Tensor) -> Tensor:
        """sum_w v_w g_iw^2 for each example: (b,)."""


@final
@dataclass(frozen=True)
class Dense(Gradient):
    """The gradients themselves: (b, *weight.shape)."""

    g: Tensor

    def wide(self) -> "Dense":
        return Dense(_wide(self.g))

    def sum_of_squares(self) -> Tensor:
        return self.g.square().sum(0)

    def weighted_squares(self, variance: Tensor) -> Tensor:
        return torch.einsum("bw,w->b", self.g.reshape(len(self.g), -1).square(), variance.flatten())

    def gram(self, other: "Dense", variance: Tensor) -> Tensor:
        """sum_w g_iw v_w h_jw: (i, j)."""
        deviation = variance.flatten().sqrt()
        left = self.g.reshape(len(self.g), -1) * deviation
        right = left if other is self else other.g.reshape(len(other.g), -1) * deviation
        return left @ right.T


@final
@dataclass(frozen=True)
class Outer(Gradient):
    """g_i a_i', for a linear map applied once to each example: g is (b, out), a is (b, in)."""

    g: Tensor
    a: Tensor

    def wide(self) -> "Outer":
        return Outer(_wide(self.g), _wide(self.a))

    def sum_of_squares(self) -> Tensor:
        return self.g.square().T @ self.a.square()

    def weighted_squares(self, variance: Tensor) -> Tensor:
        return ((self.g.square() @ variance) * self.a.square()).sum(-1)

    def dense(self) -> Dense:
        """The gradients written out: (b, out, in)."""
        return Dense(torch.einsum("bo,bi->boi", self.g, self.a))


def _wide(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))


def outer_grams(left: list[Outer], right: list[Outer], variance: Tensor, memory_budget: int) -> Tensor:
    """sum_oi g_bo a_bi v_oi h_co e_ci for every pair of gradients that share their inputs a and e: (pairs, b, c).

    The sum over the inputs, almost all of the work, is the same for every pair and done once.
    """
    a, e = left[0].a, right[0].a
    g, h = torch.stack([outer.g for outer in left]), torch.stack([outer.g for outer in right])  # (p, b, o)
    total = a.new_zeros(len(g), len(a), len(e))
    row = variance.element_size() * ((len(a) + len(e)) * a.shape[1] + len(a) * len(e))  # bytes for each o
    step = max(1, memory_budget // row)
    for start in range(0, len(variance), step):
        some = slice(start, start + step)
        deviation = variance[some].sqrt()[:, None]  # (o, 1, i)
        scaled = a * deviation
        inner = scaled @ (scaled if left is right else e * deviation).mT  # (o, b, c)
        for p in range(len(g)):
            total[p] += torch.einsum("bo,co,obc->bc", g[p, :, some], h[p, :, some], inner)
    return total
