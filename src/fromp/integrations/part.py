"""The data of a task, and of a step, out of a framework's loader."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from fromp.foundation.collectives import ALONE
from fromp.foundation.examples import labelled
from fromp.foundation.inputs import Inputs
from fromp.protocol import Regulariser, penalty_at

WHOLE = (SequentialSampler, RandomSampler, DistributedSampler)


def part_of(
    loader: DataLoader, regulariser: Regulariser, convert: Callable[[Any], Any] = lambda batch: batch
) -> DataLoader:
    """This process's part of a loader's dataset; a sampler of one's own stays, for `end_task` to judge.

    convert: what the framework does to each batch. A regulariser that knows no ranks is given the whole dataset.
    """
    ranks, sampler = getattr(regulariser, "ranks", ALONE), loader.sampler
    if ranks.size > 1 and isinstance(sampler, WHOLE):
        sampler = DistributedSampler(loader.dataset, ranks.size, ranks.rank, shuffle=False)
    collate: Callable[[list], Any] = loader.collate_fn
    return DataLoader(loader.dataset, sampler=sampler, collate_fn=lambda items: convert(collate(items)))


def penalty_in(regulariser: Regulariser, x: Callable[[], Inputs], ending: Mapping[str, Any]) -> Tensor:
    """The penalty of a step at the minibatch that x gives, of the task that `end_task(..., **ending)` will end."""
    return penalty_at(regulariser, x, **{name: value for name, value in ending.items() if name != "scores"})


def penalty_of(regulariser: Regulariser, batch: Any, ending: Mapping[str, Any]) -> Tensor:
    """The same on a labelled minibatch."""
    return penalty_in(regulariser, lambda: labelled(batch)[0], ending)
