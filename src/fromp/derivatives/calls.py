"""Functions that apply parameters, as they happened in a forward pass, and the gradients of those parameters."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from fromp.derivatives.gradients import Dense, Gradient, Outer, OuterSum, Rows
from fromp.derivatives.layout import Layout, layouts


class Call(ABC):
    """z = function(a, parameters) as it happened, and where the examples may lie in z.

    A parameter is a weight or anything that is computed from weights alone, as a part of one.
    """

    def __init__(self, z: Tensor, parameters: Iterable[Tensor | None], axes: Iterable[int], b: int) -> None:
        # The edge, and not z itself, which an in-place activation may overwrite and which need not be kept.
        self.edge = get_gradient_edge(z)
        self.parameters = [p for p in parameters if p is not None and p.requires_grad]
        self.layouts = layouts(z.shape, axes, b)
        self.b, self.outputs = b, z.numel() // b  # numbers of z for each example

    @property
    def layout(self) -> Layout:
        """Where the examples do lie, once all other layouts have been ruled out."""
        return self.layouts[0]

    @abstractmethod
    def gradient(self, parameter: Tensor, g: Tensor) -> Gradient:
        """That of one of the parameters, given that of z, g."""

    @abstractmethod
    def numbers_formed(self) -> int:
        """How many numbers `gradient` forms for each example beside g."""


@final
class LinearCall(Call):
    """z = a W' + bias, or a W + bias: a is (..., in), z is (..., out)."""

    def __init__(self, z: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None, b: int, swapped: bool = False):
        super().__init__(z, (weight, bias), range(z.ndim - 1), b)
        self.a, self.weight, self.swapped = a.detach(), weight, swapped

    @property
    def once(self) -> bool:
        """Whether it applies the weight once to each example."""
        return self.a.ndim == 2 and self.layout.positions == 1

    def gradient(self, parameter: Tensor, g: Tensor) -> Gradient:
        if parameter is not self.weight:
            return Dense(g if self.once else self._positions(g).sum(1))
        left, right = (self.a, g) if self.swapped else (g, self.a)
        if self.once and not self.swapped:  # those of all outputs share their a
            return Outer(left, right)
        return OuterSum(self._positions(left)[:, None], self._positions(right)[:, None], self.weight.shape)

    def numbers_formed(self) -> int:
        return self.outputs

    def _positions(self, t: Tensor) -> Tensor:
        """(b, positions, features)."""
        return self.layout.front(t).flatten(1, -2)


@final
class ConvCall(Call):
    """`F.conv1d`, `2d` or `3d` with any stride, padding, dilation and groups."""

    def __init__(self, z: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None, geometry: "Geometry", b: int) -> None:
        super().__init__(z, (weight, bias), (0,), b)
        self.a, self.weight, self.geometry = a.detach(), weight, geometry
        self._positions = math.prod(z.shape[2:]) * len(z) // b

    def gradient(self, parameter: Tensor, g: Tensor) -> Gradient:
        if parameter is not self.weight:
            return Dense(self.layout.front(g.flatten(2).sum(-1)).sum(1))
        groups, out = self.geometry.groups, g.shape[1]
        g = self._front(g.reshape(len(g), groups, out // groups, -1).mT)
        return OuterSum(g, self._patches, self.weight.shape)

    def numbers_formed(self) -> int:
        return self.outputs + self._positions * self.geometry.groups * self.weight.shape[1:].numel()

    @cached_property
    def _patches(self) -> Tensor:  # they depend on the input alone: formed once for all columns of S
        return self._front(self.geometry.patches(self.a, self.weight.shape))

    def _front(self, t: Tensor) -> Tensor:
        """From (images, groups, positions, n) to (b, groups, positions of all images of an example, n)."""
        return self.layout.front(t).transpose(1, 2).flatten(2, 3)


@final
class EmbeddingCall(Call):
    """z = W[rows], zero for the gradient of the row that pads."""

    def __init__(self, z: Tensor, rows: Tensor, weight: Tensor, padding: int | None, b: int) -> None:
        super().__init__(z, (weight,), range(rows.ndim), b)
        self.rows, self.num_rows, self.padding = rows, len(weight), padding

    def gradient(self, parameter: Tensor, g: Tensor) -> Gradient:
        rows, g = self.layout.front(self.rows).flatten(1), self.layout.front(g).flatten(1, -2)
        example = torch.arange(self.b, device=rows.device).repeat_interleave(rows.shape[1])
        row, g = rows.flatten(), g.flatten(0, 1)
        if self.padding is not None:
            kept = row != self.padding % self.num_rows
            example, row, g = example[kept], row[kept], g[kept]
        return Rows.of(example, row, g, self.b, self.num_rows)

    def numbers_formed(self) -> int:
        return 3 * self.outputs  # the same with what repeats summed, and the places of what is summed


@final
class ScaleCall(Call):
    """z = scale * n + shift, elementwise, as a norm ends: either may be missing, and is stretched to z's shape.

    shape: that of scale and shift with the axes along which they are stretched, such as (C, 1, 1).
    """

    def __init__(
        self,
        z: Tensor,
        n: Tensor | None,
        scale: Tensor | None,
        shift: Tensor | None,
        shape: Sequence[int],
        axes: Iterable[int],
        b: int,
    ) -> None:
        super().__init__(z, (scale, shift), axes, b)
        self.n, self.scale, self.ndim = n, scale, z.ndim
        self.stretched = (1,) * (z.ndim - len(shape)) + tuple(shape)

    def gradient(self, parameter: Tensor, g: Tensor) -> Gradient:
        if parameter is self.scale:
            assert self.n is not None
            g = g * self.n
        g = self.layout.front(g)
        over = [1 + axis for axis, n in enumerate(self.stretched) if n == 1]
        return Dense((g.sum(over) if over else g).reshape(self.b, *parameter.shape))

    def numbers_formed(self) -> int:
        return 2 * self.outputs


@dataclass(frozen=True)
class Geometry:
    """How a convolution walks over its input."""

    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int

    def patches(self, a: Tensor, shape: torch.Size) -> Tensor:
        """The patch under the kernel at each output position: (b, groups, positions, in / groups * kernel)."""
        kernel = shape[2:]
        reach = [d * (k - 1) for d, k in zip(self.dilation, kernel, strict=True)]
        if self.padding == "same":
            sides = [(r // 2, r - r // 2) for r in reach]
        else:
            sides = [(0, 0)] * len(kernel) if isinstance(self.padding, str) else [(p, p) for p in self.padding]
        a = F.pad(a, [pad for side in reversed(sides) for pad in side])
        for axis, (r, s, d) in enumerate(zip(reach, self.stride, self.dilation, strict=True), start=2):
            a = a.unfold(axis, r + 1, s)[..., ::d]  # ..., position, ..., offset
        b, channels, n = a.shape[0], a.shape[1], len(kernel)
        a = a.reshape(b, self.groups, channels // self.groups, *a.shape[2:])
        order = [0, 1, *range(3, 3 + n), 2, *range(3 + n, 3 + 2 * n)]
        return a.permute(order).reshape(b, self.groups, math.prod(a.shape[3 : 3 + n]), -1)
