"""FROMP's metric in half the memory: a scaled factor of the inverse kernel."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import final

import torch
from torch import Tensor

from fromp import gp
from fromp.foundation.errors import CheckpointError, KernelError
from fromp.foundation.state import State, tensor
from fromp.metrics.kernel import Kernel


@final
class HalfKernel(Kernel):
    """W with K^-1 = W' W, the inverse of K's Cholesky factor, each row divided by its largest entry: (t, c, i, j).

    The rows are kept in half precision, what they were divided by in single precision: (t, c, i). K and K^-1 never are
    in half precision, in which their range is lost: they are formed in double, and the divided rows hold nothing above
    1, so that nothing overflows, and what underflows is less than 1e-7 of its row's largest entry. d' K^-1 d = |W d|^2
    is computed in single precision, and W' W is positive definite however it was rounded. Each entry of W is off by at
    most 0.05 %. So is d' K^-1 d, unless d is so smooth that the terms of W d nearly cancel.
    """

    def __init__(self, factor: Tensor, scale: Tensor) -> None:
        self.factor, self.scale = factor, scale

    @classmethod
    def of(cls, k: Callable[[], Iterator[Tensor]], jitter: float | Tensor, dtype: torch.dtype) -> "HalfKernel":
        return cls._joined([cls._of_factor(factor[None], dtype) for factor in gp.factors(k(), jitter)], 1)

    @classmethod
    def bytes_held(cls, outputs: int, points: int, size: int) -> tuple[int, int]:
        kept = outputs * (2 * points**2 + size * points)
        return kept, kept + 4 * 8 * points**2

    @classmethod
    def stack(cls, kernels: Sequence["HalfKernel"]) -> "HalfKernel":
        return cls._joined(kernels, 0)

    def fits(self, outputs: int, points: int) -> bool:
        return self.factor.shape[1:3] == (outputs, points)

    def solve(self, d: Tensor) -> Tensor:
        return torch.stack([self._solve(*one) for one in zip(self.factor, self.scale, d, strict=True)])

    def take(self, tasks: Tensor | slice) -> "HalfKernel":
        return HalfKernel(self.factor[tasks], self.scale[tasks])

    def at(self, points: Tensor) -> "HalfKernel":
        w = self.factor.double() * self.scale.double().unsqueeze(-1)
        eye = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
        rows = torch.linalg.solve_triangular(w, eye, upper=False)[..., points, :]  # of K's factor
        factor = gp.cholesky((rows @ rows.mT).flatten(0, 1), 0.0).view(*w.shape[:2], len(points), -1)
        return self._of_factor(factor, self.scale.dtype)

    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> "HalfKernel":
        scale = self.scale.to(device=device, dtype=dtype)
        if not bool(torch.isfinite(scale).all()):
            raise KernelError(f"the kernel's inverse is not finite as {dtype}; use a larger jitter.")
        return HalfKernel(self.factor.to(device), scale)

    def state_dict(self) -> State:
        return {"factor": self.factor, "scale": self.scale}

    @classmethod
    def from_state(cls, state: State, device: torch.device) -> "HalfKernel":
        factor = tensor(state, "factor", 1, -1, -1, -1, floating=True)
        scale = tensor(state, "scale", *factor.shape[:3], floating=True)
        if factor.shape[-2] != factor.shape[-1] or factor.dtype != torch.float16:
            raise CheckpointError(
                f"the saved 'factor' is {factor.dtype} of shape {tuple(factor.shape)}; it must be float16 and square."
            )
        positive = (scale > 0).all() & (factor.diagonal(dim1=-2, dim2=-1) > 0).all()
        if not bool(positive & (factor.abs() <= 1).all() & (factor.triu(1) == 0).all()):
            raise CheckpointError("the saved 'factor' is none of an inverse kernel; restore it from a copy.")
        return cls(factor.to(device), scale.to(device))

    def _solve(self, factor: Tensor, scale: Tensor, d: Tensor) -> Tensor:
        """W' (W d) for one task, whose factor alone is written out: (c, i)."""
        w = factor.to(d.dtype)
        wd = (w @ d.unsqueeze(-1)).squeeze(-1) * scale.to(d.dtype).square()
        return (wd.unsqueeze(-2) @ w).squeeze(-2)

    @classmethod
    def _of_factor(cls, factor: Tensor, dtype: torch.dtype) -> "HalfKernel":
        """From K's Cholesky factor, in double precision: (t, c, i, j)."""
        eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
        w = torch.linalg.solve_triangular(factor, eye, upper=False)
        scale = w.abs().amax(-1)
        halved = (w / scale.unsqueeze(-1)).half()
        if not bool(torch.isfinite(halved).all() & torch.isfinite(scale.to(dtype)).all()):
            raise KernelError(f"the factor of the kernel's inverse is not finite as {dtype}; use a larger jitter.")
        if not bool((halved.diagonal(dim1=-2, dim2=-1) > 0).all()):  # a point that nothing would hold
            raise KernelError(
                "the factor of the kernel's inverse has rows that float16 cannot hold; use a larger jitter, or "
                "kernel=FullKernel."
            )
        return cls(halved, scale.to(dtype))

    @classmethod
    def _joined(cls, kernels: Sequence["HalfKernel"], axis: int) -> "HalfKernel":
        device = kernels[0].factor.device.type
        # Autocast refuses to join float16 on a CPU.
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            return cls(torch.cat([k.factor for k in kernels], axis), torch.cat([k.scale for k in kernels], axis))
