"""The present minibatch, for heads that are not being trained."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch

from fromp.contexts.context import Context, Points, Present
from fromp.contexts.past import Past, arriving
from fromp.foundation.inputs import num_examples, tensors


@final
@dataclass(frozen=True)
class PresentBatch(Context):
    """Every example of the present minibatch, at each past head that shares no output with the one being trained."""

    of_rank = True

    def draw(self, past: Past, present: Present, generator: torch.Generator) -> Iterator[Points]:
        if present.inputs is None:
            return
        n, device = num_examples(present.inputs), next(tensors(present.inputs)).device
        trained = set(present.head or ())
        by_width: dict[int, list[tuple[int, ...]]] = {}
        for head in past.heads:
            if trained.isdisjoint(head):
                by_width.setdefault(len(head), []).append(head)
        for heads in by_width.values():
            columns = arriving(torch.tensor(heads), device).expand(n, -1, -1)
            yield Points(present.inputs, columns, len(heads), now=present.outputs)
