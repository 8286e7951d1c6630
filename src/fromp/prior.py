"""The functional prior q~ and the distance from it, Eq. (7) with the approximations that lead to Eq. (8)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from fromp import gp
from fromp.derivatives.model import Weights, evaluating, outputs
from fromp.foundation import inputs
from fromp.foundation.errors import CheckpointError, DataError, KernelError
from fromp.foundation.inputs import Inputs
from fromp.foundation.state import State, field, tensor
from fromp.likelihoods import Likelihood
from fromp.memory import Memory


class Kernel(ABC):
    """K at the memories of t tasks that have the same shape."""

    @classmethod
    @abstractmethod
    def of(cls, k: Callable[[], Tensor], jitter: float) -> Self:
        """The kernel of one task's memory; `k` computes Eq. (10) there, (c, i, j), for those that need it."""

    @classmethod
    @abstractmethod
    def stack(cls, kernels: Sequence[Self]) -> Self:
        """Several tasks as one."""

    @abstractmethod
    def solve(self, d: Tensor) -> Tensor:
        """K^-1 d for each task and output: (t, c, i) -> (t, c, i)."""

    @abstractmethod
    def take(self, tasks: Tensor | slice) -> Self:
        """Some of the tasks; a slice of them is a view."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Self:
        """The same kernel in another precision."""

    @abstractmethod
    def state_dict(self) -> State:
        """What `from_state` needs to make an equal kernel."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: State, device: torch.device) -> Self:
        """The kernel that `state_dict` describes, on a device."""


@final
class FullKernel(Kernel):
    """One M x M kernel for each task and output, kept as its inverse: (t, c, i, j)."""

    def __init__(self, inverse: Tensor) -> None:
        self.inverse = inverse

    @classmethod
    def of(cls, k: Callable[[], Tensor], jitter: float) -> "FullKernel":
        return cls(gp.inverse(k(), jitter)[None])

    @classmethod
    def stack(cls, kernels: Sequence["FullKernel"]) -> "FullKernel":
        return cls(torch.cat([kernel.inverse for kernel in kernels]))

    def solve(self, d: Tensor) -> Tensor:
        # K is symmetric: a row times K is several times faster here than K times a column.
        return (d.unsqueeze(-2) @ self.inverse).squeeze(-2)

    def take(self, tasks: Tensor | slice) -> "FullKernel":
        return FullKernel(self.inverse[tasks])

    def to(self, dtype: torch.dtype) -> "FullKernel":
        inverse = self.inverse.to(dtype)
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


@final
class IdentityKernel(Kernel):
    """K = I: the L2 variants, Eq. (1) on the memory's means."""

    @classmethod
    def of(cls, k: Callable[[], Tensor], jitter: float) -> "IdentityKernel":
        return cls()

    @classmethod
    def stack(cls, kernels: Sequence["IdentityKernel"]) -> "IdentityKernel":
        return cls()

    def solve(self, d: Tensor) -> Tensor:
        return d

    def take(self, tasks: Tensor | slice) -> "IdentityKernel":
        return self

    def to(self, dtype: torch.dtype) -> "IdentityKernel":
        return self

    def state_dict(self) -> State:
        return {}

    @classmethod
    def from_state(cls, state: State, device: torch.device) -> "IdentityKernel":
        return cls()


@dataclass(frozen=True)
class Anchor:
    """The prior at one task's memory: where its means were, and the kernel there."""

    memory: Memory
    mean: Tensor  # (c, i)
    kernel: Kernel

    def state_dict(self) -> State:
        """Everything it holds."""
        return {"memory": self.memory.state_dict(), "mean": self.mean, "kernel": self.kernel.state_dict()}

    @classmethod
    def from_state(cls, state: State, kernel: type[Kernel], device: torch.device) -> "Anchor":
        """The anchor that `state_dict` describes, on a device."""
        memory = Memory.from_state(field(state, "memory", dict), device)
        mean = tensor(state, "mean", -1, len(memory), floating=True).to(device)
        found = kernel.from_state(field(state, "kernel", dict), device)
        if isinstance(found, FullKernel) and found.inverse.shape[1:3] != mean.shape:
            raise CheckpointError(
                f"the saved kernel is for {tuple(found.inverse.shape[1:3])} outputs and points, its means for "
                f"{tuple(mean.shape)}; restore it from a copy."
            )
        return cls(memory, mean, found)


@final
class FunctionalPrior:
    """q~(f): for each past task a Gaussian over the outputs at its memory, independent between tasks and outputs."""

    def __init__(self, anchors: Sequence[Anchor], likelihood: Likelihood, num_outputs: int, chunk_size: int) -> None:
        self.likelihood, self.num_outputs = likelihood, num_outputs
        self.blocks = [Block.of(group) for group in _groups(anchors, chunk_size)]
        # The anchors look into the blocks, so that the kernels, the largest thing kept, are kept once.
        placed = {index: anchor for block in self.blocks for index, anchor in block.anchors()}
        self.anchors = [placed[index] for index in range(len(anchors))]

    @classmethod
    def at(
        cls,
        model: nn.Module,
        memories: Sequence[Memory],
        likelihood: Likelihood,
        variance: Weights,
        kernel: type[Kernel],
        jitter: float,
        chunk_size: int,
        memory_budget: int,
    ) -> "FunctionalPrior":
        """The prior at the model's present weights, for all past tasks: the start of Algorithm 1."""
        anchors = []
        for memory in memories:
            with evaluating(model), torch.enable_grad():  # the path that the penalty will take, fast paths and all
                parts = inputs.split(memory.inputs, chunk_size)
                mean = torch.cat([gp.mean(model, part, likelihood, memory.head).detach() for part in parts])
            covariance = partial(gp.kernel, model, memory.inputs, likelihood, variance, memory.head, memory_budget)
            dtype = torch.promote_types(mean.dtype, torch.float32)  # half precision holds neither K^-1 nor differences
            k = kernel.of(covariance, jitter).to(dtype)
            anchors.append(Anchor(memory, mean.T.to(dtype).contiguous(), k))
        with evaluating(model), torch.no_grad():
            num_outputs = outputs(model, inputs.take(memories[0].inputs, slice(0, 2))).shape[1]
        return cls(anchors, likelihood, num_outputs, chunk_size)

    def squared_distance(self, model: nn.Module, tasks: Tensor | None = None) -> Tensor:
        """sum_s sum_c (m - m0)' K^-1 (m - m0) over all past tasks s, or some: a scalar, Eq. (8)."""
        with evaluating(model):
            blocks = self.blocks if tasks is None else [b.some(tasks) for b in self.blocks]
            shares = [
                block.squared_distance(model, self.likelihood, self.num_outputs) for block in blocks if len(block.tasks)
            ]
        return shares[0] if len(shares) == 1 else torch.stack(shares).sum()


@dataclass(frozen=True)
class Block:
    """Tasks whose memories have the same shape, so that they go through the network and the kernels together."""

    tasks: Tensor  # (t,) their places in the sequence
    inputs: Inputs  # (t * i, ...)
    columns: Tensor | None  # (t * i, c) the outputs of each point's head; None for all outputs
    mean: Tensor  # (t, c, i)
    kernel: Kernel
    memories: Sequence[Memory]  # whose points are views of those above

    @classmethod
    def of(cls, members: Sequence[tuple[int, Anchor]]) -> "Block":
        """One block out of several tasks."""
        anchors = [anchor for _, anchor in members]
        columns = [_columns(anchor.memory) for anchor in anchors]
        kernels = [anchor.kernel for anchor in anchors]
        points = inputs.concatenate([anchor.memory.inputs for anchor in anchors])
        i = len(anchors[0].memory)
        views = (inputs.take(points, slice(k * i, (k + 1) * i)) for k in range(len(anchors)))
        return cls(
            torch.tensor([index for index, _ in members]),
            points,
            None if columns[0] is None else torch.cat([c for c in columns if c is not None]),
            torch.stack([anchor.mean for anchor in anchors]),
            type(kernels[0]).stack(kernels),
            [replace(anchor.memory, inputs=view) for anchor, view in zip(anchors, views, strict=True)],
        )

    def some(self, tasks: Tensor) -> "Block":
        """The part of the block that belongs to `tasks`."""
        places = torch.isin(self.tasks, tasks).nonzero().flatten()
        t, i = len(self.tasks), self.mean.shape[-1]
        rows = torch.arange(t * i).view(t, i)[places].flatten()
        columns = None if self.columns is None else self.columns[rows]
        return replace(
            self,
            tasks=self.tasks[places],
            inputs=inputs.take(self.inputs, rows),
            columns=columns,
            mean=self.mean[places],
            kernel=self.kernel.take(places),
        )

    def anchors(self) -> Iterator[tuple[int, Anchor]]:
        """Its tasks one by one, as views, with their places in the sequence."""
        for k, index in enumerate(self.tasks.tolist()):
            yield index, Anchor(self.memories[k], self.mean[k], self.kernel.take(slice(k, k + 1)))

    def squared_distance(self, model: nn.Module, likelihood: Likelihood, num_outputs: int) -> Tensor:
        """The block's share of the distance: a scalar."""
        t, c, i = self.mean.shape
        f = outputs(model, self.inputs)
        if f.shape[1] != num_outputs:
            raise DataError(
                f"the model has {f.shape[1]} outputs, it had {num_outputs} when its tasks ended; "
                "give a model all its outputs from the start."
            )
        if self.columns is not None:
            f = f.gather(1, self.columns)
        d = likelihood.mean(f).view(t, i, c).mT - self.mean  # (t, c, i)
        return _QuadraticForm.apply(d, self.kernel)


class _QuadraticForm(torch.autograd.Function):
    """d' K^-1 d with its gradient 2 K^-1 d, so that K^-1, the bulk of what a step reads, is read once."""

    @staticmethod
    def forward(ctx: Any, d: Tensor, kernel: Kernel) -> Tensor:
        u = kernel.solve(d)
        ctx.kernel = kernel
        ctx.save_for_backward(d, u)
        return (d * u).sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        d, u = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone asks for second derivatives
            u = ctx.kernel.solve(d)
        return 2 * g * u, None


def _groups(anchors: Sequence[Anchor], chunk_size: int) -> Iterator[list[tuple[int, Anchor]]]:
    """Tasks of one shape together, as many as fit into a pass of `chunk_size` points (at least one)."""
    groups: dict[tuple, list[tuple[int, Anchor]]] = {}
    for index, anchor in enumerate(anchors):
        memory = anchor.memory
        shape = (memory.head is None, anchor.mean.shape, inputs.signature(memory.inputs))
        groups.setdefault(shape, []).append((index, anchor))
    for members in groups.values():
        step = max(1, chunk_size // len(members[0][1].memory))
        for start in range(0, len(members), step):
            yield members[start : start + step]


def _columns(memory: Memory) -> Tensor | None:
    if memory.head is None:
        return None
    return torch.tensor(memory.head, device=memory.labels.device).expand(len(memory), -1)
