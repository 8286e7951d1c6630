"""FROMP's metric: the inverse of the kernel of Eq. (10)."""

from collections.abc import Callable, Iterator, Sequence
from typing import final

import torch
from torch import Tensor

from fromp import gp
from fromp.foundation.errors import CheckpointError, KernelError
from fromp.foundation.state import State, tensor
from fromp.metrics.kernel import Kernel


@final
class FullKernel(Kernel):
    """One M x M kernel for each task and output, kept as its inverse: (t, c, i, j)."""

    def __init__(self, inverse: Tensor) -> None:
        self.inverse = inverse

    @classmethod
    def of(cls, k: Callable[[], Iterator[Tensor]], jitter: float | Tensor, dtype: torch.dtype) -> "FullKernel":
        return cls(torch.cat([cls(part).to(dtype).inverse for part in gp.inverses(k(), jitter)])[None])

    @classmethod
    def stack(cls, kernels: Sequence["FullKernel"]) -> "FullKernel":
        return cls(torch.cat([kernel.inverse for kernel in kernels]))

    def fits(self, outputs: int, points: int) -> bool:
        return self.inverse.shape[1:3] == (outputs, points)

    def solve(self, d: Tensor) -> Tensor:
        # K is symmetric: a row times K is several times faster here than K times a column.
        return (d.unsqueeze(-2) @ self.inverse).squeeze(-2)

    def take(self, tasks: Tensor | slice) -> "FullKernel":
        return FullKernel(self.inverse[tasks])

    def at(self, points: Tensor) -> "FullKernel":
        # K_aa^-1 is the Schur complement P_aa - P_ab P_bb^-1 P_ba in P = K^-1, with a the points that stay.
        exact = self.inverse.double()
        goes = torch.ones(exact.shape[-1], dtype=torch.bool, device=exact.device)
        goes[points] = False
        between = exact[..., goes, :][..., points]
        factor, failed = torch.linalg.cholesky_ex(exact[..., goes, :][..., goes])
        if bool(failed.any()):
            raise KernelError(
                f"the inverse kernel of the {int(goes.sum())} points that go has lost its smallest eigenvalues to "
                f"rounding in {self.inverse.dtype}; forget the whole task, or use a larger jitter from the start."
            )
        half = torch.linalg.solve_triangular(factor, between, upper=False)
        return FullKernel((exact[..., points, :][..., points] - half.mT @ half).to(self.inverse.dtype))

    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> "FullKernel":
        inverse = self.inverse.to(device=device, dtype=dtype)
        if not bool(torch.isfinite(inverse).all()):
            raise KernelError(f"the kernel's inverse is not finite as {dtype}; use a larger jitter.")
        return FullKernel(inverse)

    def state_dict(self) -> State:
        return {"inverse": self.inverse}

    @classmethod
    def from_state(cls, state: State, device: torch.device) -> "FullKernel":
        inverse = tensor(state, "inverse", 1, -1, -1, -1, floating=True)
        if inverse.shape[-2] != inverse.shape[-1]:
            raise CheckpointError(f"the saved 'inverse' has the shape {tuple(inverse.shape)}; it must be square.")
        exact = inverse.double()
        # Rounded to single precision, it may have lost the smallest of its eigenvalues, and no more than that.
        slack = 1e-4 * exact.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(0)
        lifted = exact + slack[..., None, None] * torch.eye(exact.shape[-1], dtype=exact.dtype)
        if bool((exact - exact.mT).abs().amax((-2, -1)).gt(slack).any()) or bool(
            torch.linalg.cholesky_ex(lifted)[1].any()
        ):
            raise CheckpointError("the saved 'inverse' is no inverse of a kernel; restore it from a copy.")
        return cls(inverse.to(device))
