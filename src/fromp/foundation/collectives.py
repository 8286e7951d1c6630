"""Processes that learn one stream together: sums, gathers and broadcasts; alone, each gives back what it is given."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fromp.foundation.errors import FrompError
from fromp.foundation.state import State, flatten, unflatten

T = TypeVar("T")


def ranks_of(model: nn.Module) -> "Ranks":
    """The processes that train the model: those of its DDP wrapper, else of the default process group, if any."""
    if not (dist.is_available() and dist.is_initialized()):
        return ALONE
    wrappers = (part for part in model.modules() if isinstance(part, nn.parallel.DistributedDataParallel))
    group = next((part.process_group for part in wrappers), dist.group.WORLD)
    if dist.get_world_size(group) < 2 or dist.get_rank(group) < 0:
        return ALONE
    return Together(group, next(model.parameters()).device)


class Ranks(ABC):
    """The processes that learn together; every one of them makes the same calls in the same order."""

    rank: int
    size: int

    @abstractmethod
    def total(self, x: Tensor) -> Tensor:
        """The sum over ranks."""

    @abstractmethod
    def gather(self, x: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which may differ in their first axis."""

    @abstractmethod
    def exchange(self, value: Any) -> list[Any]:
        """The JSON values of all ranks."""

    @abstractmethod
    def broadcast(self, state: State, source: int) -> State:
        """The state that rank `source` gives, on every rank."""

    @abstractmethod
    def join(self, share: Tensor, n: int) -> Tensor:
        """The whole of a tensor whose last axis, of n, is split as `share` says."""

    @abstractmethod
    def agreement(self) -> AbstractContextManager[None]:
        """A context: an error on one rank is raised on every rank, so that none waits for one that has stopped."""

    def share(self, n: int) -> slice:
        """This rank's part of n things: even parts in the order of the ranks."""
        part = -(-n // self.size)
        return slice(min(n, self.rank * part), min(n, (self.rank + 1) * part))

    def in_turn(self, work: Callable[[], T], generator: torch.Generator) -> T:
        """`work` on every rank, with the draws from the generator that one process would make for all of them."""
        before = generator.get_state()
        with self.agreement():
            result = work()
        if not any(self.exchange(not torch.equal(before, generator.get_state()))):
            return result
        generator.set_state(before)
        for source in range(self.size):
            with self.agreement():
                if source == self.rank:
                    result = work()
            generator.set_state(self.broadcast({"draws": generator.get_state()}, source)["draws"])
        return result


@final
class Alone(Ranks):
    """One process, or several that have nothing to do with each other."""

    rank, size = 0, 1

    def total(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        return [x]

    def exchange(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, state: State, source: int) -> State:
        return state

    def join(self, share: Tensor, n: int) -> Tensor:
        return share

    @contextmanager
    def agreement(self) -> Iterator[None]:
        yield

    def in_turn(self, work: Callable[[], T], generator: torch.Generator) -> T:
        return work()


ALONE: Ranks = Alone()


@final
class Together(Ranks):
    """The processes of a `torch.distributed` group, with whatever backend moves tensors on `device`."""

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self.group, self.device = group, device
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def total(self, x: Tensor) -> Tensor:
        found = x.detach().clone()
        dist.all_reduce(found, group=self.group)
        return found

    def gather(self, x: Tensor) -> list[Tensor]:
        x = x.detach()
        sizes = self._sizes(len(x))
        padded = _bytes(x.new_zeros(max(sizes), *x.shape[1:]).index_copy_(0, torch.arange(len(x)).to(x.device), x))
        parts = [torch.empty_like(padded, device=self.device) for _ in sizes]
        dist.all_gather(parts, padded.to(self.device), group=self.group)
        shape = (max(sizes), *x.shape[1:])
        return [part.to(x.device).view(x.dtype).view(shape)[:size] for part, size in zip(parts, sizes, strict=True)]

    def exchange(self, value: Any) -> list[Any]:
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(bytes(part.tolist())) for part in self.gather(text)]

    def broadcast(self, state: State, source: int) -> State:
        tensors, tree = flatten(state) if self.rank == source else ({}, None)
        headers = {name: [str(t.dtype).removeprefix("torch."), *t.shape] for name, t in tensors.items()}
        headers, tree = self.exchange([headers, tree])[source]
        for name, (dtype, *shape) in headers.items():
            sent = tensors[name] if self.rank == source else torch.empty(shape, dtype=getattr(torch, dtype))
            whole = _bytes(sent.detach()).to(self.device)
            dist.broadcast(whole, group=self.group, group_src=source)
            if self.rank != source:
                tensors[name] = whole.to("cpu").view(sent.dtype).view(shape)
        return unflatten(tensors, tree)

    def join(self, share: Tensor, n: int) -> Tensor:
        part = -(-n // self.size)
        padded = torch.nn.functional.pad(share.detach(), (0, part - share.shape[-1])).contiguous()
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded, group=self.group)
        return torch.cat(parts, -1)[..., :n]

    @contextmanager
    def agreement(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.exchange([type(error).__name__, str(error)])
            raise
        for rank, found in enumerate(self.exchange(None)):
            if found is not None:
                kind, message = found
                kinds: list[type[FrompError]] = [FrompError, *FrompError.__subclasses__()]
                ours = {known.__name__: known for known in kinds}
                if kind in ours:
                    raise ours[kind](f"on rank {rank}: {message}")
                raise FrompError(f"on rank {rank}: {kind}: {message}")

    def _sizes(self, n: int) -> list[int]:
        sizes = [torch.zeros(1, dtype=torch.long, device=self.device) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([n], device=self.device), group=self.group)
        return [int(size) for size in sizes]


def _bytes(x: Tensor) -> Tensor:
    """Its bytes in order: a backend need not know its type."""
    return x.contiguous().view(-1).view(torch.uint8)
