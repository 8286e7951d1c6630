"""Inputs of the user's own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch

from fromp.contexts.context import Context, Points, Present
from fromp.contexts.past import Past, arriving
from fromp.derivatives.model import as_head
from fromp.foundation import inputs
from fromp.foundation.checked import count
from fromp.foundation.inputs import Inputs


@final
@dataclass(frozen=True, eq=False)
class Unlabelled(Context):
    """`size` per step of inputs that have no labels, at which a head, or every output, is held."""

    inputs: Inputs
    size: int
    head: Sequence[int] | None = None

    def __post_init__(self) -> None:
        count("size", self.size)
        inputs.check_finite(self.inputs)

    def draw(self, past: Past, present: Present, generator: torch.Generator) -> Iterator[Points]:
        device, head = past.pools[0].old.device, as_head(self.head)
        chosen = torch.randint(inputs.num_examples(self.inputs), (self.size,), generator=generator)
        x = inputs.transform(lambda part: arriving(part[arriving(chosen, part.device)], device), self.inputs)
        columns = None if head is None else arriving(torch.tensor(head), device).expand(self.size, 1, -1)
        yield Points(x, columns, len(past))
