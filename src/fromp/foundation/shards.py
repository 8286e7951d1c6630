"""A task whose examples lie with several processes."""

import hashlib
from typing import final

import torch
from torch import Tensor

from fromp.foundation import inputs
from fromp.foundation.collectives import Ranks
from fromp.foundation.errors import DataError
from fromp.foundation.examples import Batch, Examples, SomeExamples

LOOKED_AT = 64  # examples by which two shards are compared


@final
class Shards(Examples):
    """The examples of all ranks as one task, in the order of the ranks or, with a DistributedSampler, of its dataset.

    Every rank makes the same calls with the same indices, and receives the same examples.
    """

    def __init__(self, own: Examples, ranks: Ranks) -> None:
        self._own, self._ranks = own, ranks
        sizes = ranks.exchange(len(own))
        sampled = getattr(own, "indices", None)
        if all(ranks.exchange(sampled is not None)) and sampled is not None:
            places = sampled
        else:
            places = sum(sizes[: ranks.rank]) + torch.arange(len(own))
        self._order = torch.cat(ranks.gather(places)).argsort()
        self._here = torch.full((sum(sizes),), -1)  # where an example of the task stands among this rank's
        self._here[places] = torch.arange(len(own))
        if ranks.size > 1:
            self._check_distinct()

    def __len__(self) -> int:
        return len(self._order)

    def of_all(self, values: Tensor) -> Tensor:
        """What belongs to each example of the task, out of what belongs to this rank's: (N, ...)."""
        return torch.cat(self._ranks.gather(values))[self._order.to(values.device)]

    def own(self, indices: Tensor) -> Examples:
        """Those of the task's examples at `indices` that this rank has."""
        here = self._here[indices]
        return SomeExamples(self._own, here[here >= 0])

    def take(self, indices: Tensor) -> Batch:
        here = (self._here[indices] >= 0).nonzero().flatten()
        own = self._here[indices[here]]
        with self._ranks.agreement():
            x, y = self._own.take(own if len(own) else torch.zeros(1, dtype=torch.long))  # no collate takes nothing
        x, y = inputs.take(x, slice(0, len(own))), y[: len(own)]
        shapes = self._ranks.exchange(f"{inputs.signature(x)}, labels {inputs.signature(y)}")
        if len(set(shapes)) > 1:
            raise DataError(
                f"the examples to be kept differ from rank to rank, {shapes[0]} and {max(shapes[1:])}; pad all of them "
                "to one length."
            )
        order = torch.cat(self._ranks.gather(here)).argsort()

        def whole(part: Tensor) -> Tensor:
            return torch.cat(self._ranks.gather(part))[order.to(part.device)]

        return inputs.transform(whole, x), whole(y)

    def _check_distinct(self) -> None:
        """An error if two ranks gave the same examples, as happens where each of them gives the whole task."""
        with self._ranks.agreement():
            x, y = self._own.take(torch.arange(min(LOOKED_AT, len(self._own))))
        digest = hashlib.sha256(repr(len(self._own)).encode())
        for part in (*inputs.tensors(x), y):
            digest.update(repr(part.tolist()).encode())
        seen: dict[str, int] = {}
        for rank, other in enumerate(self._ranks.exchange(digest.hexdigest())):
            if other in seen and len(self._own) > 1:
                raise DataError(
                    f"ranks {seen[other]} and {rank} gave the same {len(self._own)} examples; give each rank its own "
                    "part of the task, or, if every rank learns by itself, FROMP(..., ranks=Alone())."
                )
            seen[other] = rank
