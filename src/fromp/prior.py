"""The functional prior q~ and the distance from it, Eq. (7) with the approximations that lead to Eq. (8)."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from fromp import gp
from fromp.derivatives import one_by_one
from fromp.derivatives.model import Weights, evaluating, named_weights, outputs
from fromp.foundation import inputs
from fromp.foundation.collectives import ALONE, Ranks
from fromp.foundation.errors import CheckpointError, DataError, FrompError
from fromp.foundation.inputs import Inputs
from fromp.foundation.state import State, field, tensor
from fromp.likelihoods import Likelihood
from fromp.memory import Memory
from fromp.metrics.kernel import Kernel

LARGEST_DISTANCE = 1e20  # from zero, of means that are loaded: times any `tau` it fits into single precision
SHARE_OF_NOISE = 0.5  # rho of `bounding_jitter`, chosen on held-out data by tools/safety_grid.py


def wide(dtype: torch.dtype) -> torch.dtype:
    """Single precision at least: half precision holds neither K^-1 nor differences of means."""
    return torch.promote_types(dtype, torch.float32)


def wide_weight(weight: Tensor) -> Tensor:
    """The weight in single precision at least, in which what is computed from it is kept."""
    return weight.detach().to(wide(weight.dtype))


class OutputsChanged(DataError):
    """A task is held on all outputs, and the model gives more or fewer than it did."""


@dataclass(frozen=True)
class Anchor:
    """The prior at one task's memory: where its means were, and the kernel there."""

    memory: Memory
    mean: Tensor  # (c, i)
    kernel: Kernel

    def take(self, points: Tensor) -> "Anchor":
        """The prior at some of the points alone, as if the others had never been kept."""
        return Anchor(self.memory.take(points), self.mean[:, points], self.kernel.at(points))

    def to(self, device: torch.device, then: torch.dtype, now: torch.dtype) -> "Anchor":
        """On a device, beside a model whose weights were of one type and are of another."""
        dtype = wide(now) if self.mean.dtype == wide(then) else self.mean.dtype
        return Anchor(self.memory.to(device, then, now), self.mean.to(device, dtype), self.kernel.to(dtype, device))

    @property
    def width(self) -> int:
        """How many outputs the model needs at least."""
        return len(self.mean) if self.memory.head is None else 1 + max(self.memory.head)

    def state_dict(self) -> State:
        """Everything it holds."""
        return {"memory": self.memory.state_dict(), "mean": self.mean, "kernel": self.kernel.state_dict()}

    @classmethod
    def from_state(cls, state: State, kernel: type[Kernel], device: torch.device) -> "Anchor":
        """The anchor that `state_dict` describes, on a device."""
        memory = Memory.from_state(field(state, "memory", dict), device)
        mean = tensor(state, "mean", -1, len(memory), floating=True).to(device)
        found = kernel.from_state(field(state, "kernel", dict), device)
        if not found.fits(*mean.shape):
            raise CheckpointError(
                f"the saved kernel is for other numbers of outputs and points than its means, which are for "
                f"{tuple(mean.shape)}; restore it from a copy."
            )
        exact = mean.double()[None]  # the type of either is checked later
        if not bool((exact * found.to(torch.double).solve(exact)).abs().sum() < LARGEST_DISTANCE):
            raise CheckpointError("the saved means are too large for any distance from them; restore a copy.")
        return cls(memory, mean, found)


@final
class FunctionalPrior:
    """q~(f): for each past task a Gaussian over the outputs at its memory, independent between tasks and outputs."""

    def __init__(self, anchors: Sequence[Anchor], likelihood: Likelihood, chunk_size: int) -> None:
        self.likelihood, self.chunk_size = likelihood, chunk_size
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
        jitter: float | None,
        chunk_size: int,
        memory_budget: int,
        ranks: Ranks,
        kept: Mapping[int, Kernel],
        sketch: int | None,
    ) -> "FunctionalPrior":
        """The prior at the model's present weights, for all past tasks: the start of Algorithm 1.

        The ranks share the tasks, so that each kernel is computed once. kept: kernels that stay as they were, by place.
        """

        points = sum(map(len, memories))

        def anchor(place: int) -> Anchor:
            memory = memories[place]
            with evaluating(model), torch.enable_grad():  # the path that the penalty will take, fast paths and all
                parts = inputs.split(memory.inputs, chunk_size)
                f = torch.cat([outputs(model, part, memory.head).detach() for part in parts])
            mean = likelihood.mean(f)
            fixed = mean.T.to(wide(mean.dtype)).contiguous()
            if place in kept:
                return Anchor(memory, fixed, kept[place])
            k = partial(gp.kernels, model, memory.inputs, likelihood, variance, memory.head, memory_budget, sketch)
            added = bounding_jitter(likelihood, f, points) if jitter is None else jitter
            return Anchor(memory, fixed, kernel.of(k, added, fixed.dtype))

        with ranks.agreement():
            computed = {place: anchor(place) for place in range(ranks.rank, len(memories), ranks.size)}
        anchors = [
            _shared(computed.get(place), memory, place, kernel, kept.get(place), ranks)
            for place, memory in enumerate(memories)
        ]
        return cls(anchors, likelihood, chunk_size)

    def squared_distance(self, model: nn.Module, tasks: Tensor | None = None, ranks: Ranks = ALONE) -> Tensor:
        """sum_s sum_c (m - m0)' K^-1 (m - m0) over all past tasks s, or some: a scalar, Eq. (8).

        The ranks share the points of each task; the average of their gradients is that of the distance.
        """
        blocks = self.blocks if tasks is None else [b.some(tasks) for b in self.blocks]

        def share(block: Block) -> Tensor:
            with evaluating(model), torch.enable_grad():  # without it, some layers take another path than the means
                return block.squared_distance(model, self.likelihood, ranks)

        parts = [partial(share, block) for block in blocks if len(block.tasks)]
        return one_by_one.total(parts, list(named_weights(model).values()))


def bounding_jitter(likelihood: Likelihood, f: Tensor, points: int) -> Tensor:
    """rho V sqrt(m M) for a task with m of all M points, V the scale of a label's variance: (c,).

    d' (K + jitter I)^-1 d <= d'd / jitter whatever K is, so that the penalty of t tasks with m points each is at most
    sqrt(t) tau / rho times the mean over all points of sum_c d_c^2 / 2V. That is what the same deviation costs in nll
    for a Gaussian, and at most twice what it costs for a Categorical or Bernoulli (Pinsker).
    """
    return SHARE_OF_NOISE * math.sqrt(len(f) * points) * likelihood.noise_scale(f)


@dataclass(frozen=True)
class Block:
    """Tasks whose memories have the same shape, so that they go through the network and the kernels together."""

    tasks: Tensor  # (t,) their places in the sequence
    inputs: Inputs  # (t * i, ...)
    columns: Tensor | None  # (t * i, c) the outputs of each point's head; None for all outputs
    width: int  # how many outputs the heads take for granted
    mean: Tensor  # (t, c, i)
    kernel: Kernel
    memories: Sequence[Memory]  # whose points are views of those above
    places: tuple[int, ...] | None = None  # of its tasks among those of the kernel; None for all of them

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
            max(anchor.width for anchor in anchors),
            torch.stack([anchor.mean for anchor in anchors]),
            type(kernels[0]).stack(kernels),
            [replace(anchor.memory, inputs=view) for anchor, view in zip(anchors, views, strict=True)],
        )

    def some(self, tasks: Tensor) -> "Block":
        """The part of the block that belongs to `tasks`."""
        # Numbers of the CPU and slices: a device waits for neither, and K^-1 is not copied.
        places, i = torch.isin(self.tasks, tasks).nonzero().flatten().tolist(), self.mean.shape[-1]
        rows = [slice(k * i, (k + 1) * i) for k in places]
        if not rows:
            return replace(self, tasks=self.tasks[:0])
        return replace(
            self,
            tasks=self.tasks[places],
            inputs=inputs.concatenate([inputs.take(self.inputs, own) for own in rows]),
            columns=None if self.columns is None else torch.cat([self.columns[own] for own in rows]),
            mean=torch.stack([self.mean[k] for k in places]),
            places=tuple(places),
        )

    def anchors(self) -> Iterator[tuple[int, Anchor]]:
        """Its tasks one by one, as views, with their places in the sequence."""
        for k, index in enumerate(self.tasks.tolist()):
            yield index, Anchor(self.memories[k], self.mean[k], self.kernel.take(slice(k, k + 1)))

    def squared_distance(self, model: nn.Module, likelihood: Likelihood, ranks: Ranks) -> Tensor:
        """The block's share of the distance: a scalar."""
        t, c, i = self.mean.shape
        own = ranks.share(i)
        points, columns = self._at(own)
        f = outputs(model, points)
        if f.shape[1] < self.width or (columns is None and f.shape[1] != c):
            raise OutputsChanged(
                f"the model has {f.shape[1]} outputs, it had {self.width} when its tasks ended; use the same model, or "
                "one whose layers have grown: with more rows, of which the first are those they had."
            )
        if columns is not None:
            f = f.gather(1, columns)
        m = likelihood.mean(f).view(t, -1, c).mT[..., : own.stop - own.start]
        d = m - self.mean[..., own]
        solve = self.kernel.solve if self.places is None else partial(self.kernel.solve_some, tasks=self.places)
        if torch.compiler.is_compiling() and ranks.size == 1:
            return (d * solve(d)).sum()  # inductor makes the gradient of `_QuadraticForm` wrong
        return _QuadraticForm.apply(d, solve, own, i, ranks)

    def _at(self, own: slice) -> tuple[Inputs, Tensor | None]:
        """Some points of each task and the outputs of their heads; the first ones instead of none, for the graph."""
        t, i = len(self.tasks), self.mean.shape[-1]
        if own == slice(0, i):
            return self.inputs, self.columns
        rows = (
            torch.arange(t * i, device=self.mean.device)
            .view(t, i)[:, own if own.start < own.stop else slice(0, 1)]
            .flatten()
        )
        return inputs.take(self.inputs, rows), None if self.columns is None else self.columns[rows]


class _QuadraticForm(torch.autograd.Function):
    """d' K^-1 d with its gradient 2 K^-1 d, so that K^-1, the bulk of what a step reads, is read once.

    d is at this rank's own points, of n; the gradient there is `ranks.size` times larger, because ranks take averages.
    """

    @staticmethod
    def forward(ctx: Any, d: Tensor, solve: Callable[[Tensor], Tensor], own: slice, n: int, ranks: Ranks) -> Tensor:
        whole = ranks.join(d, n)
        u = solve(whole)
        ctx.solve, ctx.ranks = solve, ranks
        ctx.save_for_backward(d, u[..., own])
        return (whole * u).sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        d, u = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone asks for second derivatives
            if ctx.ranks.size > 1:
                raise FrompError(
                    f"{ctx.ranks.size} ranks share the penalty, so that none has its second derivatives; take them "
                    "with FROMP(..., ranks=Alone())."
                )
            u = ctx.solve(d)
        return 2 * ctx.ranks.size * g * u, None, None, None, None


def _shared(
    anchor: Anchor | None, memory: Memory, place: int, kernel: type[Kernel], kept: Kernel | None, ranks: Ranks
) -> Anchor:
    """The anchor that the rank whose turn it is has computed, on every rank; a kernel that was kept is there."""
    found: State = {}
    if anchor is not None:
        found = {"mean": anchor.mean, "kernel": anchor.kernel.state_dict() if kept is None else None}
    found = ranks.broadcast(found, place % ranks.size)
    if anchor is not None:
        return anchor
    device = memory.labels.device
    return Anchor(memory, found["mean"].to(device), kept or kernel.from_state(found["kernel"], device))


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
