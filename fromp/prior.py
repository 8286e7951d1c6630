"""The functional prior q~ and the distance from it, Eq. (7) with the approximations that lead to Eq. (8)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor, nn

from fromp import gp, inputs
from fromp.inputs import Inputs
from fromp.likelihoods import Likelihood
from fromp.memory import Memory
from fromp.model import Weights, evaluating, outputs


class Kernel(ABC):
    """K at the memories of t tasks that have the same shape."""

    @classmethod
    @abstractmethod
    def at(
        cls,
        model: nn.Module,
        memory: Memory,
        likelihood: Likelihood,
        variance: Weights,
        jitter: float,
        budget: int,
    ) -> Self:
        """The kernel of one task's memory, at the model's present weights."""

    @classmethod
    @abstractmethod
    def stack(cls, kernels: Sequence[Self]) -> Self:
        """Several tasks as one."""

    @abstractmethod
    def solve(self, d: Tensor) -> Tensor:
        """K^-1 d for each task and output: (t, c, i) -> (t, c, i)."""

    @abstractmethod
    def take(self, tasks: Tensor) -> Self:
        """Some of the tasks."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What `from_tensors` needs to make an equal kernel."""

    @classmethod
    @abstractmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        """The kernel that `tensors` describes."""


@final
class FullKernel(Kernel):
    """One M x M kernel for each task and output, kept as its inverse: (t, c, i, j)."""

    def __init__(self, inverse: Tensor) -> None:
        self.inverse = inverse

    @classmethod
    def at(
        cls,
        model: nn.Module,
        memory: Memory,
        likelihood: Likelihood,
        variance: Weights,
        jitter: float,
        budget: int,
    ) -> "FullKernel":
        k = gp.kernel(model, memory.inputs, likelihood, variance, memory.head, budget)
        dtype = next(iter(variance.values())).dtype
        return cls(gp.inverse(k, jitter).to(dtype)[None])

    @classmethod
    def stack(cls, kernels: Sequence["FullKernel"]) -> "FullKernel":
        return cls(torch.cat([kernel.inverse for kernel in kernels]))

    def solve(self, d: Tensor) -> Tensor:
        # K is symmetric: a row times K is several times faster here than K times a column.
        return (d.unsqueeze(-2) @ self.inverse).squeeze(-2)

    def take(self, tasks: Tensor) -> "FullKernel":
        return FullKernel(self.inverse[tasks])

    def tensors(self) -> dict[str, Tensor]:
        return {"inverse": self.inverse}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "FullKernel":
        return cls(tensors["inverse"])


@final
class IdentityKernel(Kernel):
    """K = I: the L2 variants, Eq. (1) on the memory's means."""

    @classmethod
    def at(
        cls,
        model: nn.Module,
        memory: Memory,
        likelihood: Likelihood,
        variance: Weights,
        jitter: float,
        budget: int,
    ) -> "IdentityKernel":
        return cls()

    @classmethod
    def stack(cls, kernels: Sequence["IdentityKernel"]) -> "IdentityKernel":
        return cls()

    def solve(self, d: Tensor) -> Tensor:
        return d

    def take(self, tasks: Tensor) -> "IdentityKernel":
        return self

    def tensors(self) -> dict[str, Tensor]:
        return {}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "IdentityKernel":
        return cls()


@dataclass(frozen=True)
class Anchor:
    """The prior at one task's memory: where its means were, and the kernel there."""

    memory: Memory
    mean: Tensor  # (c, i)
    kernel: Kernel


@final
class FunctionalPrior:
    """q~(f): for each past task a Gaussian over the outputs at its memory, independent between tasks and outputs."""

    def __init__(self, anchors: Sequence[Anchor], likelihood: Likelihood, chunk_size: int) -> None:
        self.anchors, self.likelihood = list(anchors), likelihood
        self.blocks = [Block.of(group) for group in _groups(self.anchors, chunk_size)]

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
            with evaluating(model), torch.no_grad():
                mean = torch.cat(
                    [gp.mean(model, part, likelihood, memory.head) for part in inputs.split(memory.inputs, chunk_size)]
                )
            k = kernel.at(model, memory, likelihood, variance, jitter, memory_budget)
            anchors.append(Anchor(memory, mean.T.contiguous(), k))
        return cls(anchors, likelihood, chunk_size)

    def squared_distance(self, model: nn.Module, tasks: Tensor | None = None) -> Tensor:
        """sum_s sum_c (m - m0)' K^-1 (m - m0) over all past tasks s, or some: a scalar, Eq. (8)."""
        with evaluating(model):
            blocks = self.blocks if tasks is None else [b.some(tasks) for b in self.blocks]
            return sum(
                (block.squared_distance(model, self.likelihood) for block in blocks if len(block.tasks)),
                torch.zeros((), device=self.anchors[0].mean.device),
            )


@dataclass(frozen=True)
class Block:
    """Tasks whose memories have the same shape, so that they go through the network and the kernels together."""

    tasks: Tensor  # (t,) their places in the sequence
    inputs: Inputs  # (t * i, ...)
    columns: Tensor | None  # (t * i, c) the outputs of each point's head; None for all outputs
    mean: Tensor  # (t, c, i)
    kernel: Kernel

    @classmethod
    def of(cls, members: Sequence[tuple[int, Anchor]]) -> "Block":
        """One block out of several tasks."""
        anchors = [anchor for _, anchor in members]
        columns = [_columns(anchor.memory) for anchor in anchors]
        kernels = [anchor.kernel for anchor in anchors]
        return cls(
            torch.tensor([place for place, _ in members]),
            inputs.concatenate([anchor.memory.inputs for anchor in anchors]),
            None if columns[0] is None else torch.cat([c for c in columns if c is not None]),
            torch.stack([anchor.mean for anchor in anchors]),
            type(kernels[0]).stack(kernels),
        )

    def some(self, tasks: Tensor) -> "Block":
        """The part of the block that belongs to `tasks`."""
        places = torch.isin(self.tasks, tasks).nonzero().flatten()
        t, i = len(self.tasks), self.mean.shape[-1]
        rows = torch.arange(t * i).view(t, i)[places].flatten()
        columns = None if self.columns is None else self.columns[rows]
        return Block(
            self.tasks[places],
            inputs.take(self.inputs, rows),
            columns,
            self.mean[places],
            self.kernel.take(places),
        )

    def squared_distance(self, model: nn.Module, likelihood: Likelihood) -> Tensor:
        """The block's share of the distance, with the gradient of the whole of it."""
        t, c, i = self.mean.shape
        f = outputs(model, self.inputs)
        if self.columns is not None:
            f = f.gather(1, self.columns)
        d = likelihood.mean(f).view(t, i, c).mT - self.mean  # (t, c, i)
        # K is symmetric, so the gradient of d' K^-1 d is 2 u' with u = K^-1 d held fixed: K^-1 is read once.
        product = (d * self.kernel.solve(d.detach())).sum()
        return 2 * product - product.detach()


def _groups(anchors: Sequence[Anchor], chunk_size: int) -> Iterator[list[tuple[int, Anchor]]]:
    """Tasks of one shape together, as many as fit into a pass of `chunk_size` points (at least one)."""
    groups: dict[tuple, list[tuple[int, Anchor]]] = {}
    for place, anchor in enumerate(anchors):
        memory = anchor.memory
        shape = (memory.head is None, anchor.mean.shape, inputs.signature(memory.inputs))
        groups.setdefault(shape, []).append((place, anchor))
    for members in groups.values():
        step = max(1, chunk_size // len(members[0][1].memory))
        for start in range(0, len(members), step):
            yield members[start : start + step]


def _columns(memory: Memory) -> Tensor | None:
    if memory.head is None:
        return None
    return torch.tensor(memory.head, device=memory.labels.device).expand(len(memory), -1)
