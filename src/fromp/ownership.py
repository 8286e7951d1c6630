"""What is kept belongs to someone: what stays of it when examples are deleted, budgets shrink, or two sites meet."""

import hashlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fromp.foundation import inputs, storage
from fromp.foundation.errors import CheckpointError, DataError, FrompError
from fromp.likelihoods import Likelihood
from fromp.memory import Memory, Select, share

SLACK = 1e-5  # relative: what rounding may take from a precision that has passed through another dtype


def staying(task: int, kept: int, forgotten: Any) -> Tensor:
    """The places of a task's memory that are left once those of `forgotten` are gone, in order."""
    numbers = forgotten.tolist() if isinstance(forgotten, Tensor) else forgotten
    if not isinstance(numbers, Iterable) or isinstance(numbers, str):
        raise FrompError(f"examples={forgotten} is not a list of places in memories[{task}]; write examples=[3].")
    stays = torch.ones(kept, dtype=torch.bool)
    for place in numbers:
        if isinstance(place, bool) or not 0 <= operator.index(place) < kept:
            raise FrompError(f"task {task} has no example {place} to forget: {kept} are kept, counted from 0.")
        stays[place] = False
    return stays.nonzero().flatten()


def union(start: Sequence[Memory], ours: Sequence[Memory], theirs: Sequence[Memory]) -> list[Memory]:
    """The memories of two sites that went on from `start`: what both still have of it, then what is new to each.

    A task is recognised by its examples. What one of the sites has forgotten of the start stays forgotten.
    """
    before, here, there = ([_names(memory) for memory in memories] for memories in (start, ours, theirs))
    kept_here, kept_there = _descendants(before, here, "this regulariser"), _descendants(before, there, "the other one")
    new_here, new_there = range(len(kept_here), len(ours)), range(len(kept_there), len(theirs))
    for i in new_here:
        for j in new_there:
            if set(here[i]) <= set(there[j]) or set(there[j]) <= set(here[i]):
                raise DataError(
                    f"task {i} of this regulariser and task {j} of the other one hold the same examples, which the "
                    "start does not: give as `start` the last state that both went on from. If both learned the same "
                    "data, forget the task in one of them; the precision then counts it twice."
                )
    common = []
    for s in sorted(kept_here.keys() & kept_there.keys()):
        i, also = kept_here[s], set(there[kept_there[s]])
        stays = [place for place, name in enumerate(here[i]) if name in also]
        if stays:
            common.append(ours[i].take(torch.tensor(stays)) if len(stays) < len(ours[i]) else ours[i])
    return [*common, *(ours[i] for i in new_here), *(theirs[j] for j in new_there)]


def joined(start: Mapping[str, Tensor], ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """p_a + p_b - p_0: Eq. (9) over the tasks of both sites, those of the start counted once."""
    for site, precision in (("this regulariser", ours), ("the other one", theirs)):
        for name, value in precision.items():
            if bool((value < start[name] * (1 - SLACK)).any()):
                raise CheckpointError(
                    f"the precision of '{name}' in {site} is below that of the start, and tasks only add to it: "
                    f"{site} did not go on from there. Give as `start` the last state that both went on from."
                )
    added = {name: (theirs[name].double() - start[name].double()).clamp_min(0) for name in ours}
    return {name: (value.double() + added[name]).to(value.dtype) for name, value in ours.items()}


def budgeted(select: Select, total: int) -> Select:
    """The same selection, whose errors name the budget over all tasks that a size has come from."""

    def choose(scores: Tensor, classes: Tensor, size: int) -> Tensor:
        try:
            return select(scores, classes, size)
        except DataError as error:
            raise DataError(
                f"total_memory={total} leaves {size} points for a task of {int(classes.unique().numel())} classes; "
                "raise total_memory, or forget a task."
            ) from error

    return choose


def within(
    total: int, memories: Sequence[Memory], coming: int, likelihood: Likelihood, select: Select
) -> tuple[list[Memory], int]:
    """The memories once a task of `coming` examples has joined them, and its own share of `total` points.

    The points that `select` would pick last go first: with `per_class` the lowest scores within each class.
    """
    if total <= len(memories):
        raise DataError(f"total_memory={total} is smaller than {len(memories) + 1} tasks; use at least one point each.")
    *sizes, own = share(total, [*map(len, memories), coming])
    shrunk = []
    for memory, size in zip(memories, sizes, strict=True):
        if size < len(memory):
            stays = select(memory.scores, likelihood.classes(memory.labels), size)
            memory = memory.take(stays.sort().values)
        shrunk.append(memory)
    return shrunk, own


def _names(memory: Memory) -> list[str]:
    """A name for each example: the digest of its input, its label and its head."""
    x, kind = inputs.move(memory.inputs, torch.device("cpu")), repr((memory.head, inputs.signature(memory.inputs)))
    parts, labels = list(inputs.tensors(x)), memory.labels.cpu()
    names = []
    for place in range(len(memory)):
        example = {str(k): part[place] for k, part in enumerate([labels, *parts])}
        names.append(hashlib.sha256(kind.encode() + storage.serialise(example)).hexdigest())
    return names


def _descendants(start: Sequence[list[str]], site: Sequence[list[str]], who: str) -> dict[int, int]:
    """The places in a site of the start's tasks: they come first, in their order, without what was forgotten."""
    found: dict[int, int] = {}
    for place, names in enumerate(start):
        if len(found) < len(site) and set(site[len(found)]) <= set(names):
            found[place] = len(found)
    if start and not found:
        raise DataError(
            f"{who} holds none of the {len(start)} tasks of the start: give as `start` the state that it went on from. "
            "If it has forgotten them all, forget them in the start too."
        )
    return found
