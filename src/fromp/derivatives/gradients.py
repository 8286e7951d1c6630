"""Gradients of many examples at once, each in the smallest form that holds it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor

FORMED = 2**20  # numbers written out at a time: more fall out of the cache
SQUARED = 2**16  # the same where each is touched again at once


class Gradient(ABC):
    """d (s . f(x_i)) / d weight for every example i of a chunk, in the smallest form that holds it."""

    @abstractmethod
    def wide(self) -> Self:
        """The same in single precision at least, in which squares neither vanish nor overflow."""

    @abstractmethod
    def dense(self) -> "Dense":
        """The gradients written out: (b, *weight.shape)."""

    @abstractmethod
    def add_squares(self, total: Tensor) -> None:
        """total += sum_i g_i^2, elementwise, in the weight's own shape."""

    @abstractmethod
    def weighted_squares(self, variance: Tensor) -> Tensor:
        """sum_w v_w g_iw^2 for each example: (b,)."""

    @abstractmethod
    def gram(self, other: Any, variance: Tensor) -> Tensor:
        """sum_w g_iw v_w h_jw for a gradient of the same form: (i, j)."""


@final
@dataclass(frozen=True)
class Dense(Gradient):
    """The gradients themselves: (b, *weight.shape)."""

    g: Tensor

    def wide(self) -> "Dense":
        return Dense(_wide(self.g))

    def dense(self) -> "Dense":
        return self

    def add_squares(self, total: Tensor) -> None:
        total += self.g.square().sum(0)

    def weighted_squares(self, variance: Tensor) -> Tensor:
        return torch.einsum("bw,w->b", self.g.reshape(len(self.g), -1).square(), variance.flatten())

    def gram(self, other: "Dense", variance: Tensor) -> Tensor:
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

    def dense(self) -> Dense:
        return Dense(torch.einsum("bo,bi->boi", self.g, self.a))

    def at_a_position(self) -> "OuterSum":
        """The same as a sum over one position."""
        return OuterSum(self.g[:, None, None], self.a[:, None, None], torch.Size((self.g.shape[1], self.a.shape[1])))

    def add_squares(self, total: Tensor) -> None:
        total += self.g.square().T @ self.a.square()

    def weighted_squares(self, variance: Tensor) -> Tensor:
        return ((self.g.square() @ variance) * self.a.square()).sum(-1)

    def gram(self, other: "Outer", variance: Tensor) -> Tensor:
        left = [self]
        return outer_grams(left, left if other is self else [other], variance)[0]


@final
@dataclass(frozen=True)
class OuterSum(Gradient):
    """sum_t g_it a_it', for a linear map at several positions t: g is (b, groups, t, out), a is (b, groups, t, in).

    A convolution is one, whose a are the patches under its kernel. A few rows of the weight are written out at a time.
    """

    g: Tensor
    a: Tensor
    shape: torch.Size  # the weight's: (groups * out, *in)

    def wide(self) -> "OuterSum":
        return OuterSum(_wide(self.g), _wide(self.a), self.shape)

    def dense(self) -> Dense:
        return Dense((self.g.mT @ self.a).reshape(len(self.g), *self.shape))

    def add_squares(self, total: Tensor) -> None:
        rows = torch.zeros_like(self._rows(total))  # of its own: the weight may lie in memory in another order
        step = max(1, SQUARED // rows.numel())
        for start in range(0, len(self.g), step):
            written = self.g[start : start + step].mT @ self.a[start : start + step]
            rows += written.square_().sum(0) if step > 1 else written[0].square_()
        total += rows.view_as(total)

    def weighted_squares(self, variance: Tensor) -> Tensor:
        rows, total = self._rows(variance), self.g.new_zeros(len(self.g))
        for some, written in self._written(len(self.g)):
            total += torch.einsum("bgoi,goi->b", written.square(), rows[:, some])
        return total

    def gram(self, other: "OuterSum", variance: Tensor) -> Tensor:
        deviation, b, c = self._rows(variance.sqrt()), len(self.g), len(other.g)
        total = self.g.new_zeros(b, c, dtype=torch.double)
        for (some, written), (_, others) in zip(self._written(b + c), other._written(b + c), strict=True):
            left = (written * deviation[:, some]).reshape(b, -1)
            right = left if other is self else (others * deviation[:, some]).reshape(c, -1)
            total += left @ right.T
        return total

    def _rows(self, weight: Tensor) -> Tensor:
        """The weight, or what is kept of each of its numbers, as (groups, out, in)."""
        return weight.reshape(self.g.shape[1], self.g.shape[3], self.a.shape[3])

    def _written(self, b: int) -> Iterator[tuple[slice, Tensor]]:
        """Some of the rows, and the gradients there: (b, groups, some, in)."""
        step = max(1, FORMED // (b * self.a.shape[1] * self.a.shape[3]))
        for start in range(0, self.g.shape[3], step):
            some = slice(start, start + step)
            yield some, self.g[..., some].mT @ self.a


@final
@dataclass(frozen=True)
class Rows(Gradient):
    """Gradients that reach a few rows of the weight, as an embedding's: g is (n, width), in row `row` of `example`.

    No row comes twice for one example.
    """

    example: Tensor
    row: Tensor
    g: Tensor
    b: int
    num_rows: int

    @classmethod
    def of(cls, example: Tensor, row: Tensor, g: Tensor, b: int, num_rows: int) -> "Rows":
        """From rows that may repeat within an example, whose gradients are summed."""
        kept, places = (example * num_rows + row).unique(return_inverse=True)
        summed = g.new_zeros(len(kept), g.shape[-1]).index_add_(0, places, g)
        return cls(kept // num_rows, kept % num_rows, summed, b, num_rows)

    def wide(self) -> "Rows":
        return Rows(self.example, self.row, _wide(self.g), self.b, self.num_rows)

    def dense(self) -> Dense:
        written = self.g.new_zeros(self.b, self.num_rows, self.g.shape[1])
        written[self.example, self.row] = self.g
        return Dense(written)

    def add_squares(self, total: Tensor) -> None:
        total.index_add_(0, self.row, self.g.square())

    def weighted_squares(self, variance: Tensor) -> Tensor:
        each = (variance[self.row] * self.g.square()).sum(-1)
        return each.new_zeros(self.b).index_add_(0, self.example, each)

    def gram(self, other: "Rows", variance: Tensor) -> Tensor:
        # Only rows that several examples share are written out, some at a time; most words stand in one alone.
        rows, counts = self.row.unique(return_counts=True)
        shared = rows[counts > 1] if other is self else rows[torch.isin(rows, other.row)]
        left, right = self._among(shared), other._among(shared)
        total = self.g.new_zeros(self.b, other.b, dtype=torch.double)
        step = max(1, FORMED // ((self.b + other.b) * max(1, self.g.shape[1])))
        for start in range(0, len(shared), step):
            deviation = variance[shared[start : start + step]].sqrt()
            one = (left._written(start, len(deviation)) * deviation).flatten(1)
            two = one if other is self else (right._written(start, len(deviation)) * deviation).flatten(1)
            total += one @ two.T
        if other is self:
            alone = rows[counts == 1]
            total.diagonal().add_(self._among(alone).weighted_squares(variance[alone]))
        return total

    def _among(self, rows: Tensor) -> "Rows":
        """What stands in these rows, which are sorted; numbered by their places there, and sorted by them."""
        kept = torch.isin(self.row, rows).nonzero().flatten()
        kept = kept[self.row[kept].argsort(stable=True)]
        return Rows(self.example[kept], torch.searchsorted(rows, self.row[kept]), self.g[kept], self.b, len(rows))

    def _written(self, start: int, count: int) -> Tensor:
        """The gradients in `count` rows from `start`, of rows that are sorted: (b, count, width)."""
        ends = torch.tensor([start, start + count], device=self.row.device)
        some = slice(*torch.searchsorted(self.row, ends).tolist())
        written = self.g.new_zeros(self.b, count, self.g.shape[1])
        written[self.example[some], self.row[some] - start] = self.g[some]
        return written


def added(parts: Sequence[Gradient]) -> Gradient:
    """The sum of the gradients of a weight that is used several times, in a form that all of them have."""
    sums = [part.at_a_position() if isinstance(part, Outer) else part for part in parts]
    outer = [part for part in sums if isinstance(part, OuterSum)]
    if len(outer) == len(parts) and len({part.g.shape[1] for part in outer}) == 1:
        return OuterSum(torch.cat([p.g for p in outer], 2), torch.cat([p.a for p in outer], 2), outer[0].shape)
    rows = [part for part in sums if isinstance(part, Rows)]
    if len(rows) == len(parts):
        example, row, g = (torch.cat([getattr(part, of) for part in rows]) for of in ("example", "row", "g"))
        return Rows.of(example, row, g, rows[0].b, rows[0].num_rows)
    return Dense(torch.stack([part.dense().g for part in parts]).sum(0))


def joined(parts: Sequence[Gradient]) -> Gradient:
    """The gradients of several chunks of examples, one after another, in a form that all of them have."""
    outer = [part for part in parts if isinstance(part, Outer)]
    if len(outer) == len(parts):
        return Outer(torch.cat([part.g for part in outer]), torch.cat([part.a for part in outer]))
    rows = [part for part in parts if isinstance(part, Rows)]
    if len(rows) == len(parts):
        first = [sum(before.b for before in rows[:k]) for k in range(len(rows))]
        example = torch.cat([part.example + start for part, start in zip(rows, first, strict=True)])
        row, g = torch.cat([part.row for part in rows]), torch.cat([part.g for part in rows])
        return Rows(example, row, g, sum(part.b for part in rows), rows[0].num_rows)
    return Dense(torch.cat([part.dense().g for part in parts]))


def outer_grams(left: Sequence[Outer], right: Sequence[Outer], variance: Tensor) -> Tensor:
    """sum_oi g_bo a_bi v_oi h_co e_ci for every pair of gradients that share their inputs a and e: (pairs, b, c).

    The sum over the inputs, almost all of the work, is the same for every pair and done once, over those rows o of the
    weight that any of the gradients reaches.
    """
    a, e = left[0].a, right[0].a
    total = a.new_zeros(len(left), len(a), len(e))
    reached = torch.stack([outer.g.any(0) for outer in left]).any(0).nonzero().flatten()
    step = max(1, FORMED // max(len(a) * len(e), (len(a) + len(e)) * a.shape[1]))
    for rows in reached.split(step):
        deviation = variance[rows].sqrt()[:, None]  # (o, 1, i)
        scaled = a * deviation
        inner = scaled @ (scaled if left is right else e * deviation).mT  # (o, b, c)
        for p, (g, h) in enumerate(zip(left, right, strict=True)):
            total[p] += (inner * g.g.T[rows, :, None]).mul_(h.g.T[rows, None]).sum(0)
    return total


def _wide(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))
