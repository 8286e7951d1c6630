"""The data of a task out of a framework's loader."""

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from fromp.foundation.collectives import ALONE
from fromp.protocol import Regulariser

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
