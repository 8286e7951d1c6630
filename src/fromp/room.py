"""What the end of a task holds in memory at once, estimated before any work, and what is said if that is too much."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import nn

from fromp.derivatives.budget import MEMORY_BUDGET, PASS_BYTES, activation_bytes, bytes_per_example
from fromp.derivatives.model import Head, detached, device_of, evaluating, outputs, trainable
from fromp.foundation import inputs
from fromp.foundation.errors import FrompError
from fromp.foundation.inputs import Inputs
from fromp.metrics.identity_kernel import IdentityKernel
from fromp.metrics.kernel import Kernel

Method = TypeVar("Method", bound=Callable[..., Any])
Shape: TypeAlias = tuple[int, int]  # outputs and points of a task
Part: TypeAlias = tuple[Inputs, Head, int]  # a few inputs of a task, its head, and how many points are to be kept

COPIES = 5  # of a number per weight: the precision so far, the GGN and its sum, the new precision, and the variance
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")  # as torch says it


@dataclass(frozen=True)
class Room:
    """What ending a task takes, in bytes."""

    kernel: type[Kernel]
    size: int  # of one number
    weights: int  # how many are trained
    past: Sequence[Shape]  # the tasks that are held until the new prior takes their place
    coming: Sequence[Shape]  # those that are held then, the new one last
    example: int  # what one example takes in a chunk
    point: int  # what is kept of one input
    activations: int  # of one point in a pass over the memory

    @classmethod
    def of(
        cls, model: nn.Module, parts: Sequence[Part], kernel: type[Kernel], past: Sequence[Shape],
        stay: Sequence[Shape] = (),
    ) -> "Room":  # fmt: skip
        """Measured at a few inputs of each task in `parts`; of those in `stay`, the shapes are known."""
        weights = detached(model, trainable(model))
        coming, example, point, activations = [*stay], 0, 0, 0
        with evaluating(model):
            for x, head, points in parts:
                x = inputs.move(x, device_of(model))
                example = max(example, bytes_per_example(model, weights, x, head))  # says why inputs do not fit
                with torch.no_grad():
                    coming.append((outputs(model, x, head).shape[1], points))
                activations = max(activations, activation_bytes(model, weights, x, head))
                point = max(point, sum(part.nbytes for part in inputs.tensors(x)) // inputs.num_examples(x))
        numbers = weights.values()
        size = max(torch.promote_types(weight.dtype, torch.float32).itemsize for weight in numbers)
        return cls(kernel, size, sum(weight.numel() for weight in numbers), past, coming, example, point, activations)

    @property
    def held(self) -> int:
        """What is there all the time: numbers per weight, the points, the kernels of the old prior and the new."""
        points = sum(m for _, m in [*self.past, *self.coming])
        return (
            COPIES * self.size * self.weights
            + 2 * self.point * points
            + self._kept(self.past)
            + self._kept(self.coming)
        )

    @property
    def worked(self) -> int:
        """What is there besides at the worst moment, without a chunk: one kernel's computation, or a copy of all."""
        largest = max(self.kernel.bytes_held(c, m, self.size)[1] for c, m in self.coming)
        return max(largest, self._kept(self.coming), min(PASS_BYTES, self.activations * max(m for _, m in self.coming)))

    @property
    def least(self) -> int:
        """What it takes with one example per chunk."""
        return self.held + self.worked + 2 * self.example

    def chunk(self, budget: int | None, free: int | None) -> int:
        """The bytes that a chunk may take; an error if not even one example fits.

        budget: what may be taken in all; None for what is free.
        """
        limit = budget if budget is not None else free
        if limit is None:
            return MEMORY_BUDGET
        if self.least > limit:
            raise FrompError(self._too_much(limit, budget))
        # Twice: the gradients of one chunk, and what is formed from them, such as the products of two.
        chunk = (limit - self.held - self.worked) // 2
        return chunk if budget is not None else min(MEMORY_BUDGET, chunk)

    def _too_much(self, limit: int, budget: int | None) -> str:
        allowed = f"memory_budget={budget} allows {_mib(limit)}" if budget is not None else f"{_mib(limit)} are free"
        kept, replaced = self._kept(self.coming), self._kept(self.past)
        ways = [f"memory_size={fits}"] if (fits := self._points_that_fit(limit)) else []
        if kept and replace(self, kernel=IdentityKernel).least <= limit:
            ways.append("kernel=IdentityKernel, which has no matrices")
        more = "more memory" if budget is None else f"a memory_budget of {_mib(self.least)} ({self.least})"
        return (
            f"the end of this task takes {_mib(self.least)} at least, and {allowed}. The kernels of {len(self.coming)} "
            f"tasks take {_mib(kept)}, {_mib(self.worked)} more while they are computed, those that they replace "
            f"{_mib(replaced)}, and {COPIES} numbers per weight {_mib(COPIES * self.size * self.weights)}. "
            f"There is room with {', '.join([*ways, f'or {more}']) if ways else more}."
        )

    def _points_that_fit(self, limit: int) -> int:
        """How many points of the new task there is room for; 0 if for none."""
        *before, (c, most) = self.coming
        fits, too_many = 0, most
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if replace(self, coming=[*before, (c, middle)]).least <= limit:
                fits = middle
            else:
                too_many = middle
        return fits

    def _kept(self, shapes: Sequence[Shape]) -> int:
        return sum(self.kernel.bytes_held(c, m, self.size)[0] for c, m in shapes)


def free_bytes(device: torch.device, meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """What could be allocated on a device now, if that is known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = meminfo.read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def out_of_memory_is_ours(method: Method) -> Method:
    """A method that changes nothing unless it succeeds, and says in our words that memory ran out."""

    @wraps(method)
    def within(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not any(text in str(error) for text in OUT_OF_MEMORY):
                raise
            raise FrompError(
                f"memory ran out in {method.__name__}, and nothing has been changed: {str(error).strip()[:200]}. Use a "
                "smaller memory_budget (for smaller chunks), a smaller memory_size, or kernel=IdentityKernel."
            ) from error

    return cast(Method, within)


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB" if count >= 2**20 else f"{count / 2**10:,.0f} KiB"
