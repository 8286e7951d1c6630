"""Mixtures of remembered points: inputs without end, at no cost in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fromp.contexts.context import Context, Points, Present
from fromp.contexts.past import Past, arriving
from fromp.foundation import inputs
from fromp.foundation.checked import count
from fromp.foundation.errors import DataError
from fromp.foundation.inputs import Inputs
from fromp.memory import Memory


@final
@dataclass(frozen=True)
class Mixtures(Context):
    """`size` points z = (1 - u) z_i + u z_j per step: z_i, z_j remembered points with the same head, u ~ U(0, 1)."""

    labelled = True

    size: int

    def __post_init__(self) -> None:
        count("size", self.size)

    def draw(self, past: Past, present: Present, generator: torch.Generator) -> Iterator[Points]:
        for pool, i, j in past.draw(self.size, generator):
            u = torch.rand(len(i), generator=generator, dtype=torch.double).to(pool.old.dtype)
            u = arriving(u, pool.old.device)
            yield Points(
                _mix(inputs.take(pool.inputs, i), inputs.take(pool.inputs, j), u),
                None if pool.columns is None else pool.columns[i],
                len(past) * len(i) / self.size,
                ((1 - u, pool.labels[i]), (u, pool.labels[j])),
                num_outputs=pool.num_outputs,
            )

    def check(self, memory: Memory) -> None:
        for part in inputs.tensors(memory.inputs):
            if not part.is_floating_point():
                raise DataError(
                    f"inputs of type {part.dtype} cannot be mixed; give floating-point inputs (x.float() for images), "
                    "or hold tokens and the like at the remembered points alone: "
                    "Composed(model, likelihood, [Hold(Remembered(128), Logits(), 0.05)])."
                )


def _mix(a: Inputs, b: Inputs, u: Tensor) -> Inputs:
    """(1 - u) a + u b."""

    def mixed(one: Tensor, other: Tensor) -> Tensor:
        return torch.lerp(one, other, u.to(one.dtype).view(-1, *[1] * (one.ndim - 1)))

    return inputs.replace(a, map(mixed, inputs.tensors(a), inputs.tensors(b)))
