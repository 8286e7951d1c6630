"""Linear maps and convolutions as they happen in a forward pass, and the gradients of their weights."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fromp.derivatives.gradients import Dense, Gradient, Outer
from fromp.derivatives.model import Weights


class AffineCall(ABC):
    """z = W a + bias as it happened in a forward pass, with the names of the tracked weights in it."""

    weight: str | None
    bias: str | None
    z: Tensor

    def names(self) -> list[str]:
        """The tracked weights that this call applies."""
        return [name for name in (self.weight, self.bias) if name is not None]

    @abstractmethod
    def gradients(self, g: Tensor) -> Iterator[tuple[str, Gradient]]:
        """The gradients of this call's weights, given those of its output, g like z."""

    @abstractmethod
    def numbers_formed(self) -> int:
        """How many numbers `gradients` forms for each example."""


@final
class LinearCall(AffineCall):
    """`F.linear`: a is (b, ..., in), z is (b, ..., out)."""

    def __init__(self, weight: str | None, bias: str | None, a: Tensor, z: Tensor) -> None:
        self.weight, self.bias, self.a, self.z = weight, bias, a.detach(), z

    def gradients(self, g: Tensor) -> Iterator[tuple[str, Gradient]]:
        once = self.a.ndim == 2
        if self.weight is not None:
            yield (
                self.weight,
                Outer(g, self.a) if once else Dense(torch.einsum("b...o,b...i->boi", g, self.a)),
            )
        if self.bias is not None:
            yield self.bias, Dense(g if once else g.flatten(1, -2).sum(1))

    def numbers_formed(self) -> int:
        outer = self.a.shape[-1] * self.z.shape[-1]
        return self.z.shape[-1] + (0 if self.a.ndim == 2 else outer)


@final
class ConvCall(AffineCall):
    """`F.conv1d`, `2d` or `3d` with any stride, padding, dilation and groups."""

    def __init__(
        self,
        weight: str | None,
        bias: str | None,
        a: Tensor,
        z: Tensor,
        shape: torch.Size,
        geometry: "Geometry",
    ) -> None:
        self.weight, self.bias, self.a, self.z = weight, bias, a.detach(), z
        self.shape, self.geometry = shape, geometry
        self._patches: Tensor | None = None

    def gradients(self, g: Tensor) -> Iterator[tuple[str, Gradient]]:
        b, out = g.shape[:2]
        if self.weight is not None:
            if self._patches is None:  # they depend on the input alone: formed once for all columns of S
                self._patches = self.geometry.patches(self.a, self.shape)
            grouped = g.reshape(b, self.geometry.groups, out // self.geometry.groups, -1)
            yield self.weight, Dense((grouped @ self._patches).reshape(b, *self.shape))
        if self.bias is not None:
            yield self.bias, Dense(g.flatten(2).sum(-1))

    def numbers_formed(self) -> int:
        positions = math.prod(self.z.shape[2:])
        return self.z.shape[1] + self.shape.numel() + positions * self.geometry.groups * self.shape[1:].numel()


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


class Recorder(TorchFunctionMode):
    """Sees every torch function a forward pass calls, and notes the affine ones that apply tracked weights."""

    def __init__(self, weights: Weights, batch: int) -> None:
        super().__init__()
        self.names = {id(weight): name for name, weight in weights.items()}
        self.batch = batch
        self.calls: list[AffineCall] = []

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        bind = _AFFINE.get(func)
        call = bind(self, result, *args, **kwargs) if bind is not None else None
        if call is None or not call.names():
            return result
        self.calls.append(call)
        # An in-place activation would overwrite z; it gets a copy to write on.
        return result.clone()

    def linear(self, z: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> AffineCall | None:
        # The examples must lie along the first axis, and no other axis may be mistaken for them.
        if input.ndim < 2 or weight.ndim != 2 or input.shape[0] != self.batch or self.batch in input.shape[1:-1]:
            return None
        return LinearCall(self.names.get(id(weight)), self.names.get(id(bias)), input, z)

    def conv(
        self,
        z: Tensor,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> AffineCall | None:
        n = weight.ndim - 2
        if input.ndim != weight.ndim or input.shape[0] != self.batch:
            return None
        padding = padding if isinstance(padding, str) else _tuple(padding, n)
        geometry = Geometry(_tuple(stride, n), padding, _tuple(dilation, n), groups)
        return ConvCall(self.names.get(id(weight)), self.names.get(id(bias)), input, z, weight.shape, geometry)


_AFFINE: dict[Callable, Callable[..., AffineCall | None]] = {
    F.linear: Recorder.linear,
    F.conv1d: Recorder.conv,
    F.conv2d: Recorder.conv,
    F.conv3d: Recorder.conv,
}


def _tuple(value: Any, n: int) -> tuple[int, ...]:
    return (value,) * n if isinstance(value, int) else tuple(value) * (n if len(value) == 1 else 1)
