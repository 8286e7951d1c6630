"""Kernels of a linear last layer: each output is moved by its own row of the weight alone."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from fromp.derivatives.gradients import FORMED
from fromp.derivatives.model import Weights
from fromp.derivatives.tape import Tape


class Slope(NamedTuple):
    """d m / d f of each example as diag(own) - left right': (b, c) each."""

    own: Tensor
    left: Tensor
    right: Tensor


SlopeOf: TypeAlias = Callable[[Tensor], Slope | None]


class LastLayer:
    """sum_w g_icw v_w g_jcw over the weights of the linear layer that gives f, for some outputs c at a time.

    With A_o[i, j] = sum_k v_ok a_ik a_jk, that of f_o, it is (s s' - d d') A_c + l l' sum_o r_io r_jo A_o elementwise,
    where l and r are the slope's left and right at output c, d = l r and s = own - d: work for each output that does
    not grow with their number. In double precision throughout, as the terms of a saturated output nearly cancel.
    """

    def __init__(self, names: tuple[str, ...], a: Tensor, slope: Slope, variance: Tensor) -> None:
        self.names, self._a, self._variance = names, a.double(), variance.double()
        self._slope = Slope(*(part.double().T for part in slope))  # (c, n)
        n, k = a.shape
        self._step = max(1, FORMED // max(n * n, n * k))
        self._shared = a.new_zeros(n, n, dtype=torch.double)
        for some in self._portions(range(len(variance))):
            right = self._slope.right[some]
            self._shared += (_squared(right) * self._of(some)).sum(0)

    @classmethod
    def of(cls, tapes: Iterable[Tape], slope_of: SlopeOf, variance: Weights) -> "LastLayer | None":
        """That of a model whose examples are in these tapes, if it ends so and its means have such a slope."""
        inputs, slopes = [], []
        names: dict[str, str] = {}
        for tape in tapes:
            found, slope = tape.last_linear(), slope_of(tape.f.detach())
            if found is None or slope is None:
                return None
            a, names = found
            inputs.append(a)
            slopes.append(slope)
        a = torch.cat(inputs)
        columns = {"weight": a, "bias": a.new_ones(len(a), 1)}
        return cls(
            tuple(names.values()),
            torch.cat([columns[role] for role in names], 1),
            Slope(*(torch.cat(part) for part in zip(*slopes, strict=True))),
            torch.cat([variance[name].flatten(1) if role == "weight" else variance[name][:, None]
                       for role, name in names.items()], 1),
        )  # fmt: skip

    def add_grams(self, total: Tensor, outputs: range) -> None:
        """total += what the layer adds to the kernels of some outputs: (c', i, j)."""
        for some in self._portions(outputs):
            own, left, right = (part[some] for part in self._slope)
            among = left * right
            added = (_squared(own - among) - _squared(among)) * self._of(some)
            total[some.start - outputs.start : some.stop - outputs.start] += added + _squared(left) * self._shared

    def _of(self, some: slice) -> Tensor:
        """A_o for some outputs: (o, i, j)."""
        scaled = self._a * self._variance[some].sqrt()[:, None]
        return scaled @ scaled.mT

    def _portions(self, outputs: range) -> Iterable[slice]:
        for start in range(outputs.start, outputs.stop, self._step):
            yield slice(start, min(outputs.stop, start + self._step))


def _squared(rows: Tensor) -> Tensor:
    return rows[:, :, None] * rows[:, None]
