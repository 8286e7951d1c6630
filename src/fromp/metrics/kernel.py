"""A metric that ties the points of a task together: d' K^-1 d on the means."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import torch
from torch import Tensor

from fromp.foundation.state import State


class Kernel(ABC):
    """K at the memories of t tasks that have the same shape."""

    @classmethod
    @abstractmethod
    def of(cls, k: Callable[[], Iterator[Tensor]], jitter: float | Tensor, dtype: torch.dtype) -> Self:
        """The kernel of one task's memory; `k` computes Eq. (10) there, for those that need it.

        It does so for some outputs at a time, (c', i, j). jitter: added to the diagonal, one number or one per output,
        (c,). dtype: in which it is kept.
        """

    @classmethod
    def bytes_held(cls, outputs: int, points: int, size: int) -> tuple[int, int]:
        """What one task takes: as it is kept, in numbers of `size` bytes, and at least while it is computed.

        Unless overridden, that is K^-1, and a copy of it beside K, its factor and its inverse of one output in double.
        """
        kept = size * outputs * points**2
        return kept, kept + 4 * 8 * points**2

    def fits(self, outputs: int, points: int) -> bool:
        """Whether it is one for so many outputs and points of a task; unless overridden, it is for any."""
        return True

    @classmethod
    @abstractmethod
    def stack(cls, kernels: Sequence[Self]) -> Self:
        """Several tasks as one."""

    @abstractmethod
    def solve(self, d: Tensor) -> Tensor:
        """K^-1 d for each task and output: (t, c, i) -> (t, c, i)."""

    def solve_some(self, d: Tensor, tasks: Sequence[int]) -> Tensor:
        """The same for some of the tasks, of whose kernels nothing is copied: (t', c, i) -> (t', c, i)."""
        return torch.cat([self.take(slice(t, t + 1)).solve(one) for t, one in zip(tasks, d.split(1), strict=True)])

    @abstractmethod
    def take(self, tasks: Tensor | slice) -> Self:
        """Some of the tasks; a slice of them is a view."""

    @abstractmethod
    def at(self, points: Tensor) -> Self:
        """The kernel of some of the points alone, as if the others had never been kept."""

    @abstractmethod
    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> Self:
        """The same kernel in another precision, and on another device."""

    @abstractmethod
    def state_dict(self) -> State:
        """What `from_state` needs to make an equal kernel."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: State, device: torch.device) -> Self:
        """The kernel that `state_dict` describes, on a device."""
