"""The remembered points themselves."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch

from fromp.contexts.context import Context, Points, Present
from fromp.contexts.past import Past
from fromp.foundation import inputs
from fromp.foundation.checked import count_or_none


@final
@dataclass(frozen=True)
class Remembered(Context):
    """`size` remembered points per step, evenly over the past tasks; all of them if it is None."""

    labelled = True

    size: int | None = None

    def __post_init__(self) -> None:
        count_or_none("size", self.size)

    @property
    def whole(self) -> bool:
        return self.size is None

    def draw(self, past: Past, present: Present, generator: torch.Generator) -> Iterator[Points]:
        if self.size is None:
            total = sum(len(pool.labels) for pool in past.pools)
            for pool in past.pools:
                scale = len(past) * len(pool.labels) / total
                labels = ((1.0, pool.labels),)
                yield Points(pool.inputs, pool.columns, scale, labels, pool.old, pool.num_outputs, tasks=pool.tasks)
            return
        for pool, chosen, _ in past.draw(self.size, generator):
            yield Points(
                inputs.take(pool.inputs, chosen),
                None if pool.columns is None else pool.columns[chosen],
                len(past) * len(chosen) / self.size,
                ((1.0, pool.labels[chosen]),),
                pool.old[chosen],
                pool.num_outputs,
            )
