"""The memorable past, Sec. 3.2: which examples of a task are kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from fromp.derivatives.budget import MEMORY_BUDGET, chunks
from fromp.derivatives.model import Head, as_head, detached, evaluating, of_head, outputs, trainable
from fromp.foundation.errors import CheckpointError, DataError, warn
from fromp.foundation.examples import Examples
from fromp.foundation.inputs import Inputs, check_finite, move, num_examples, take, transform
from fromp.foundation.state import State, field, tensor
from fromp.likelihoods import Likelihood

# (likelihood, f, y, generator) -> one number for each example, the highest remembered first: (b,)
Score: TypeAlias = Callable[[Likelihood, Tensor, Tensor, torch.Generator], Tensor]
# (scores, classes, size) -> the indices of the examples to keep
Select: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Memory:
    """What is kept of one task: M inputs, their labels and scores, and the head they belong to."""

    inputs: Inputs
    labels: Tensor
    scores: Tensor
    head: Head
    indices: Tensor  # their places in the task's data, on the CPU

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, points: Tensor) -> "Memory":
        """Some of the examples, as copies: nothing of the others is held."""
        return replace(
            self,
            inputs=take(self.inputs, points),
            labels=self.labels[points],
            scores=self.scores[points],
            indices=self.indices[points.cpu()],
        )

    def to(self, device: torch.device, then: torch.dtype | None, now: torch.dtype) -> "Memory":
        """On a device, beside a model whose weights were of one type and are of another."""
        return replace(
            self,
            inputs=transform(lambda part: part.to(device, now if part.dtype == then else part.dtype), self.inputs),
            labels=self.labels.to(device),
            scores=self.scores.to(device),
        )

    def state_dict(self) -> State:
        """Everything it holds."""
        return {
            "inputs": self.inputs, "labels": self.labels, "scores": self.scores, "head": self.head,
            "indices": self.indices,
        }  # fmt: skip

    @classmethod
    def from_state(cls, state: State, device: torch.device) -> "Memory":
        """The memory that `state_dict` describes, on a device."""
        labels = tensor(state, "labels")
        count = len(labels) if labels.ndim else 0
        x = field(state, "inputs", Tensor, list, dict)
        if count == 0 or num_examples(x) != count:
            raise CheckpointError(
                f"the saved memory has {count} labels, and not as many inputs; restore it from a copy."
            )
        check_finite(x)
        head = as_head(field(state, "head", list, type(None)))
        scores, indices = tensor(state, "scores", count, floating=True), tensor(state, "indices", count, floating=False)
        return cls(move(x, device), labels.to(device), scores.to(device), head, indices.cpu())


class Held(Protocol):
    """Where a network is held: a memory, and the means there."""

    @property
    def memory(self) -> Memory:
        """The points."""

    @property
    def mean(self) -> Tensor:
        """m of each output at each point: (c, i)."""


def uninformed_nll(likelihood: Likelihood, held: Sequence[Held]) -> float:
    """The mean nll of all remembered labels where every output is 0."""
    # As near 0 as can be: of a position in a sequence, 0 itself says that there is none.
    f = (torch.full_like(one.mean.T, torch.finfo(one.mean.dtype).tiny) for one in held)
    costs = [likelihood.nll(outputs, one.memory.labels) for outputs, one in zip(f, held, strict=True)]
    return float(torch.cat(costs).mean())


def memorability(likelihood: Likelihood, f: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """Tr Lambda(x_i): how much each example holds the fit in place: (b,)."""
    return likelihood.trace(f)


def least_memorable(likelihood: Likelihood, f: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """The other end of the same order, for comparison: (b,)."""
    return -memorability(likelihood, f, y, generator)


def random_score(likelihood: Likelihood, f: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """A number that has nothing to do with the example: the random past of FRORP: (b,)."""
    return torch.rand(len(f), generator=generator).to(f)


def per_class(scores: Tensor, classes: Tensor, size: int) -> Tensor:
    """The highest scores within each class, `size` shared evenly; what a small class lacks goes to the others."""
    present = classes.unique()
    if size < len(present):
        raise DataError(
            f"memory_size={size} is smaller than the task's {len(present)} classes; use at least {len(present)}, or "
            "select=top, which ignores the classes."
        )
    available = [int((classes == c).sum()) for c in present]
    quotas = share(size, available)
    picked = []
    for c, quota in zip(present, quotas, strict=True):
        members = (classes == c).nonzero().flatten()
        picked.append(members[_highest(scores[members])[:quota]])
    return torch.cat(picked)


def top(scores: Tensor, classes: Tensor, size: int) -> Tensor:
    """The highest scores of all, whatever their class: Algorithm 1."""
    return _highest(scores)[:size]


def share(size: int, available: list[int]) -> list[int]:
    """Even quotas that add up to `size` where that much is available, none above what is."""
    quotas = [0] * len(available)
    while sum(quotas) < min(size, sum(available)):
        open_ = [k for k, n in enumerate(available) if quotas[k] < n]
        even, rest = divmod(size - sum(quotas), len(open_))
        for index, k in enumerate(open_):
            quotas[k] = min(available[k], quotas[k] + even + (index < rest))
    return quotas


def assess(
    model: nn.Module,
    examples: Examples,
    likelihood: Likelihood,
    generator: torch.Generator,
    head: Head = None,
    score: Score = memorability,
    memory_budget: int = MEMORY_BUDGET,
) -> tuple[Tensor, Tensor]:
    """The score and the class of every example, once inputs, outputs and labels are found sound: (N,), (N,)."""
    scores, classes, doubts, seen = [], [], [], 0
    weights = detached(model, trainable(model))
    with evaluating(model), torch.no_grad():
        for x, y in chunks(model, weights, examples, head, memory_budget, likelihood.numbers_formed):
            f = outputs(model, x)
            doubts.append(likelihood.doubt(f))
            f = of_head(f, head)
            _check_outputs(f, seen)
            likelihood.check_labels(y, f.shape[1])
            scores.append(score(likelihood, f, y, generator))
            classes.append(likelihood.classes(y))
            seen += len(y)
    if all(doubts):
        warn(str(doubts[0]))
    return torch.cat(scores), torch.cat(classes)


def remember(
    examples: Examples,
    scores: Tensor,
    classes: Tensor,
    size: int,
    head: Head = None,
    select: Select = per_class,
) -> Memory:
    """The `size` examples that `select` picks by their scores, as copies that do not hold on to the data.

    A task that has fewer is kept whole, with a warning.
    """
    check_scores(scores, len(examples))
    if size > len(examples):
        warn(f"memory_size={size} is larger than the task's {len(examples)} examples; all of them are kept.")
    indices = select(scores, classes, min(size, len(examples)))
    x, y = examples.take(indices.cpu())
    x = move(transform(lambda part: part.detach().clone(), x), scores.device)
    return Memory(x, y.detach().clone().to(scores.device), scores[indices].detach().clone(), head, indices.cpu())


def check_scores(scores: Tensor, count: int) -> None:
    """An error unless there is one number for each of `count` examples."""
    if scores.shape != (count,):
        raise DataError(
            f"scores have the shape {tuple(scores.shape)}; give one number for each of the {count} examples."
        )
    if bool(torch.isnan(scores).any()):
        raise DataError(f"{int(torch.isnan(scores).sum())} scores are NaN; every example needs a number.")


def _highest(scores: Tensor) -> Tensor:
    """The places from the highest score down. Ties, which all scores are in regression, are broken by a fixed random
    permutation."""
    mixed = torch.randperm(len(scores), generator=torch.Generator().manual_seed(0)).to(scores.device)
    return mixed[scores[mixed].argsort(descending=True, stable=True)]


def _check_outputs(f: Tensor, start: int) -> None:
    wrong = (~torch.isfinite(f).all(1)).nonzero().flatten()
    if len(wrong):
        raise DataError(
            f"the model's outputs at example {start + int(wrong[0])} are NaN or infinite "
            f"({len(wrong)} such examples in this batch); has training diverged?"
        )
