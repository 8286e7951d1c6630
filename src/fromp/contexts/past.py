"""The memories of all past tasks, as pools that contexts draw from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeAlias, final

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Head, evaluating, outputs
from fromp.foundation import inputs
from fromp.foundation.inputs import Constant, Inputs
from fromp.memory import Memory

Constants: TypeAlias = tuple[tuple[str, Constant], ...]

CHUNK = 1000  # points that go through the network at once when a task ends


@dataclass(frozen=True)
class Pool:
    """Memories whose points go through the network together: one kind of input, heads of one width."""

    inputs: Inputs  # (N, ...)
    labels: Tensor  # (N, ...)
    columns: Tensor | None  # (N, 1, c) the outputs of each point's head; None for all outputs
    old: Tensor  # (N, c) the outputs of the network at the last task's end
    num_outputs: int  # how many the network has, in all heads
    tasks: tuple[tuple[int, slice], ...]  # each task's place in the sequence, and its points

    @classmethod
    def of(cls, tasks: Sequence[int], memories: Sequence[Memory], teacher: nn.Module) -> "Pool":
        """The points of some tasks' memories, one after another."""
        points = inputs.concatenate([memory.inputs for memory in memories])
        labels = torch.cat([memory.labels for memory in memories])
        heads = [
            torch.tensor(m.head, device=labels.device).expand(len(m), 1, -1) for m in memories if m.head is not None
        ]
        columns = torch.cat(heads) if heads else None
        with evaluating(teacher), torch.no_grad():
            f = torch.cat([outputs(teacher, part) for part in inputs.split(points, CHUNK)])
        old = f if columns is None else f.gather(1, columns[:, 0])
        ends = list(accumulate(map(len, memories)))
        places = (slice(end - len(memory), end) for end, memory in zip(ends, memories, strict=True))
        return cls(points, labels, columns, old, f.shape[1], tuple(zip(tasks, places, strict=True)))


@final
class Past:
    """The points kept of each past task, and the outputs there of `teacher`, the network at the last task's end."""

    def __init__(self, memories: Sequence[Memory], teacher: nn.Module) -> None:
        self.teacher = teacher
        kinds = [_kind(memory) for memory in memories]
        tasks, every = range(len(memories)), list(dict.fromkeys(kinds))
        alike = [[t for t in tasks if kinds[t] == kind] for kind in every]
        self.pools = [Pool.of(own, [memories[t] for t in own], teacher) for own in alike]
        pool = [every.index(kind) for kind in kinds]
        first = [sum(len(memories[s]) for s in range(t) if kinds[s] == kinds[t]) for t in tasks]
        # Views of the pools, so that the points are kept once.
        self.memories = tuple(
            replace(memory, inputs=inputs.take(self.pools[k].inputs, slice(start, start + len(memory))))
            for memory, k, start in zip(memories, pool, first, strict=True)
        )
        self.heads: dict[Constants, list[Head]] = {}
        for head, constants in dict.fromkeys((memory.head, as_constants(memory.inputs)) for memory in self.memories):
            if head is not None or constants:
                self.heads.setdefault(constants, []).append(head)
        kin = [[s for s in tasks if (kinds[s], memories[s].head) == (kinds[t], memories[t].head)] for t in tasks]
        self._pool, self._first = torch.tensor(pool), torch.tensor(first)
        self._size, self._num_kin = torch.tensor([*map(len, memories)]), torch.tensor([*map(len, kin)])
        self._kin = nn.utils.rnn.pad_sequence([torch.tensor(own) for own in kin], batch_first=True)

    def __len__(self) -> int:
        return len(self.memories)

    def outputs(self) -> list[tuple[Tensor, int]]:
        """Of each task, the old network's outputs that are held, (i, c), and how many it had there in all heads."""
        found = {task: (pool.old[own], pool.num_outputs) for pool in self.pools for task, own in pool.tasks}
        return [found[task] for task in range(len(self))]

    def draw(self, size: int, generator: torch.Generator) -> Iterator[tuple[Pool, Tensor, Tensor]]:
        """`size` points, evenly over the tasks, and a partner of each that has the same head: (n,), (n,) per pool."""
        u = torch.rand(3, size, generator=generator, dtype=torch.double)
        task = (torch.randint(len(self), (), generator=generator) + torch.arange(size)) % len(self)
        other = self._kin[task, (u[0] * self._num_kin[task]).long()]
        both = torch.stack((task, other))
        own, its = self._first[both] + (u[1:] * self._size[both]).long()
        for k, pool in enumerate(self.pools):
            here = slice(None) if len(self.pools) == 1 else (self._pool[task] == k).nonzero().flatten()
            if len(chosen := own[here]):
                yield pool, arriving(chosen, pool.old.device), arriving(its[here], pool.old.device)


def arriving(drawn: Tensor, device: torch.device) -> Tensor:
    """What was drawn on the CPU, on its way to a device, which is not waited for."""
    return drawn.to(device, non_blocking=True)


def as_constants(x: Inputs) -> Constants:
    """The constants among some inputs, such as the name of a task."""
    return tuple(sorted(inputs.constants(x).items()))


def _kind(memory: Memory) -> tuple:
    """What must agree for points to be in one pool."""
    width = None if memory.head is None else len(memory.head)
    return width, memory.labels.dtype, tuple(memory.labels.shape[1:]), inputs.signature(memory.inputs)
