"""What every framework needs: the data of a task, and of a step, out of its loader, and whether it trains our model."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from fromp.derivatives.model import bare
from fromp.foundation.collectives import ALONE
from fromp.foundation.errors import FrompError
from fromp.foundation.examples import labelled
from fromp.foundation.inputs import Inputs
from fromp.protocol import Regulariser, penalty_at

WHOLE = (SequentialSampler, RandomSampler, DistributedSampler)


def check_trained(model: nn.Module, regulariser: Regulariser) -> None:
    """An error unless the model that a framework trains is the regulariser's, or has it within."""
    held: nn.Module = bare(regulariser.model)
    if bare(model) is not held and all(part is not held for part in model.modules()):
        raise FrompError(
            f"the regulariser's model, a {type(held).__name__}, is no part of the {type(model).__name__} that is "
            "trained; give both the same one."
        )


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
