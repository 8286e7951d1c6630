"""The present minibatch, for heads that are not being trained."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fromp.contexts.context import Context, Points, Present
from fromp.contexts.past import Past, arriving
from fromp.derivatives.model import Head
from fromp.foundation.inputs import Inputs, num_examples, tensors


@final
@dataclass(frozen=True)
class PresentBatch(Context):
    """Every example of the present minibatch, at each past head that shares no output with the one being trained.

    Heads that the model chooses by an argument take a pass each: one of them is drawn per step.
    """

    of_rank = True

    def draw(self, past: Past, present: Present, generator: torch.Generator) -> Iterator[Points]:
        if present.inputs is None:
            return
        trained = set(present.head or ())
        here = [head for head in past.heads.get(present.constants, []) if head and trained.isdisjoint(head)]
        yield from _at(present.inputs, here, 1, present.outputs)
        others = [constants for constants in past.heads if constants != present.constants]
        if others and present.under is not None:
            chosen = others[int(torch.randint(len(others), (), generator=generator)) if len(others) > 1 else 0]
            yield from _at(present.under(chosen), past.heads[chosen], len(others), None)


def _at(x: Inputs, heads: Sequence[Head], scale: int, now: Tensor | None) -> Iterator[Points]:
    """The points of a minibatch at some heads, those of one width together."""
    n, device = num_examples(x), next(tensors(x)).device
    by_width: dict[int, list[Head]] = {}
    for head in heads:
        by_width.setdefault(0 if head is None else len(head), []).append(head)
    for width, alike in by_width.items():
        columns = arriving(torch.tensor(alike), device).expand(n, -1, -1) if width else None
        yield Points(x, columns, scale * len(alike), now=now)
