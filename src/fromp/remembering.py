"""What every regulariser has: a model, what is kept of its past tasks, and what its owner may do with that."""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor, nn

from fromp import growth, ownership
from fromp.compatible import check_memory, check_shapes
from fromp.constancy import Attributes, attributes, check_attributes, check_unmoved, means
from fromp.derivatives.budget import MEMORY_BUDGET
from fromp.derivatives.keywords import WithKeywords, checked_keywords, with_keywords
from fromp.derivatives.model import (
    Head,
    Output,
    Picked,
    as_head,
    detached,
    device_of,
    dtype_of,
    named_weights,
    trainable,
)
from fromp.derivatives.sharded import on_whole_weights
from fromp.derivatives.watch import WeightWatch, fingerprint
from fromp.foundation import inputs
from fromp.foundation.arrays import Numbers, as_tensors
from fromp.foundation.checked import Setting, count, count_or_none, positive
from fromp.foundation.collectives import Ranks, ranks_of
from fromp.foundation.errors import DataError, FrompError
from fromp.foundation.examples import Examples, TaskData, arrange, as_examples
from fromp.foundation.inputs import Constant, Inputs
from fromp.foundation.state import State, flatten
from fromp.inspection import Inspection, inspect
from fromp.keeping import Keep, Transform
from fromp.likelihoods import Likelihood
from fromp.memory import Held, Memory, Score, Select, uninformed_nll
from fromp.prior import wide, wide_weight
from fromp.room import out_of_memory_is_ours
from fromp.uncertainty import Uncertainty, those_of

Place: TypeAlias = tuple[torch.device, torch.dtype]
NOTHING = torch.empty(0, dtype=torch.long)


class Remembering(ABC):
    """A model, what its outputs mean, and what is kept of its past tasks: `FROMP` and its relatives hold it there."""

    memory_size = Setting(count)
    total_memory = Setting(count_or_none)
    memory_budget = Setting(count_or_none)
    precision: dict[str, Tensor]

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        memory_size: int,
        *,
        score: Score,
        select: Select,
        seed: int,
        output: Output | None,
        total_memory: int | None,
        keep: Transform | None,
        ranks: Ranks | None,
        memory_budget: int | None = None,
    ) -> None:
        self._ranks = ranks
        trainable(model)
        if not isinstance(likelihood, Likelihood):
            raise FrompError(f"likelihood={likelihood} is not a likelihood; give one, such as Categorical().")
        self._model, self._likelihood = model, likelihood
        self._output, self._keep = output, Keep(keep)
        self._made_by: State | None = None  # the record of `keep` when the first task ended
        self._network = model if output is None else Picked(model, output)  # the same, as a function that gives f
        self.memory_size, self.total_memory, self.memory_budget = memory_size, total_memory, memory_budget
        self.score, self.select = score, select
        self.precision = {}
        self._generator = torch.Generator().manual_seed(seed)
        self._watch, self._attributes, self._place = WeightWatch(self._network), Attributes(), self._place_of_model()

    @property
    def model(self) -> nn.Module:
        """The model that is held; make another regulariser, or load a state, to hold another one."""
        return self._model

    @property
    def likelihood(self) -> Likelihood:
        """What the model's outputs mean."""
        return self._likelihood

    @property
    def ranks(self) -> Ranks:
        """The processes that learn each task together."""
        return self._ranks or ranks_of(self.model)

    @property
    @abstractmethod
    def memories(self) -> tuple[Memory, ...]:
        """What is kept of each past task, in order; `forget` removes it."""

    @abstractmethod
    def state_dict(self) -> State:
        """Everything but the model's present weights."""

    def __repr__(self) -> str:
        """What is held: tasks, points, heads and bytes."""
        tensors, _ = flatten(self.state_dict())
        kept = sum(value.nbytes for value in tensors.values()) / 2**20
        points = sum(map(len, self.memories))
        heads = len({memory.head for memory in self.memories})
        return (
            f"{type(self).__name__}({type(self.model).__name__}, {type(self.likelihood).__name__}, "
            f"{self._in_words()}memory_size={self.memory_size}: "
            f"{len(self.memories)} tasks, {points} points, {heads} heads, {kept:.1f} MiB)"
        )

    def uncertainty(
        self, head: Sequence[int] | None = None, weight_precision: float = 1.0, **keywords: Constant
    ) -> Uncertainty:
        """What the memory says of a head's outputs at any input, at the model's present weights.

            known = reg.uncertainty()
            known.novelty(x)          # 0 to 1: is x unlike what was learned?
            known.calibrated(x_held_out, y_held_out).interval(x, 0.9)    # in regression: where the label lies

        weight_precision: of the weights around their present values, before the memory: 1 unless you know better.
        Unlike `FROMP.predict`, it does not use the precision, which holds no correlation between weights.
        """
        head, given = as_head(head), checked_keywords(self._network, "uncertainty", keywords)
        memories = those_of(self.memories, head, given)
        weights = detached(self._network, trainable(self._network))
        v = 1 / positive("weight_precision", weight_precision)
        variance = {
            name: torch.full_like(wide_weight(weight), v, requires_grad=False) for name, weight in weights.items()
        }
        return Uncertainty(
            self._network,
            self.likelihood,
            memories,
            variance,
            head,
            partial(self._prepared, keywords=given),
            self._budget,
        )

    @on_whole_weights
    def forget(self, task: int, examples: Sequence[int] | Tensor | None = None) -> None:
        """Drop a past task, counted from 0, or the examples at some places of its memory, as when they must be deleted.

        What is computed from an example goes with it: what holds the model is then that of a regulariser that has
        never kept it. If nothing of a task is left, the task is gone, and those after it move up by one. What the task
        has added to the precision stays: that is one number per weight, summed over all examples of all tasks.
        """
        place, memories = operator.index(task), self.memories
        if not 0 <= place < len(memories):
            raise FrompError(f"no task {task} to forget: {len(memories)} are remembered, counted from 0.")
        left = ownership.staying(place, len(memories[place]), examples) if examples is not None else NOTHING
        self._leave(place, left)

    @out_of_memory_is_ours
    @on_whole_weights
    def merge(self, other: Self, start: Self | None = None) -> None:
        """Take over what another site has learned since both went on from `start`, without its data.

            reg.merge(FROMP.load("theirs", model), start=FROMP.load("january", model))

        The memories are the union, where those of the start come once and without what either site has forgotten; the
        precision is p_a + p_b - p_0. The model is held anew at its present weights: give it an average of both sites'
        weights, or those of one of them, before. start: None if both began with nothing.
        """
        before = [] if start is None else self._adopted(start)
        memories = ownership.union(before, self._adopted(self), self._adopted(other))
        names = dict.fromkeys([*self.precision, *other.precision])
        weights = {name: weight for name, weight in named_weights(self._network).items() if name in names}
        p, q, p0 = (
            {name: self._known(name, weight, precision).to(wide_weight(weight)) for name, weight in weights.items()}
            for precision in (self.precision, other.precision, {} if start is None else start.precision)
        )
        self._hold_anew(memories, ownership.joined(p0, p, q))
        self._fixed_here()

    def inspect(self) -> Inspection:
        """One row per task: points, classes, head, scores, drift and bytes; `print` it, or read its `rows`."""
        held = sum(value.nbytes for value in self.precision.values())
        return inspect(self.memories, self.drift(), self.likelihood, self._kept_of_tasks(), held)

    @on_whole_weights
    def drift(self) -> list[float]:
        """How far the means have moved at each past task's memory since they were fixed: root mean square."""
        self._check_place()
        self._grow()
        held = self._held()
        now = means(self._network, self.likelihood, held)
        return [float((m - one.mean).square().mean().sqrt()) for m, one in zip(now, held, strict=True)]

    def to(self, *where: torch.device | str | int | torch.dtype) -> Self:
        """Bring what is kept to a device, a type or both, as the model is brought there: `reg.to("cuda")`; itself.

        In half precision, the inputs become that, and all else single precision.
        """
        (device, now), then = self._place, self._place[1]
        for one in where:
            try:
                device, now = (
                    (device, one) if isinstance(one, torch.dtype) else (torch.empty(0, device=one).device, now)
                )
            except (RuntimeError, AssertionError, TypeError) as error:
                raise FrompError(
                    f"{one!r} is no device of this machine ({error}), and no floating-point type."
                ) from error
        if not now.is_floating_point:
            raise FrompError(f"{now} is not a floating-point type; give one, such as torch.float64.")
        self._move(device, then, now)
        self.precision = {
            name: value.to(device, wide(now) if value.dtype == wide(then) else value.dtype)
            for name, value in self.precision.items()
        }
        self._place = device, now
        return self

    @abstractmethod
    def _in_words(self) -> str:
        """The settings that say how strongly the model is held, for `repr`."""

    @abstractmethod
    def _held(self) -> Sequence[Held]:
        """Where the model is held, one for each task."""

    @abstractmethod
    def _kept_of_tasks(self) -> Sequence[State]:
        """Everything that is kept of each task."""

    @abstractmethod
    def _leave(self, place: int, left: Tensor) -> None:
        """Keep only the points `left` of the task at a place, and all of the others."""

    @abstractmethod
    def _hold_anew(self, memories: Sequence[Memory], precision: dict[str, Tensor]) -> None:
        """Hold the model where it is now, at these memories."""

    @abstractmethod
    def _move(self, device: torch.device, then: torch.dtype, now: torch.dtype) -> None:
        """Bring all but the precision to a device, beside a model that was of one type and is of another."""

    @abstractmethod
    def _grow(self) -> bool:
        """Take layers with more rows than they had as grown, if there are any: the past stays on the outputs it had."""

    @property
    @abstractmethod
    def _prior_precision(self) -> float:
        """The precision of a weight before any data."""

    def _arranged(
        self,
        data: TaskData,
        labels_or_head: tuple[Numbers | Sequence[int] | None, ...],
        head: Sequence[int] | None,
        keywords: Mapping[str, Any],
    ) -> tuple[Examples, Head, State]:
        """The examples that `end_task` was given as they will be kept, their head, and the record of `keep`."""
        self._check_place()
        self._grow()
        check_shapes(self._network, {name: list(value.shape) for name, value in self._rows().items()})
        check_attributes(self._network, self.likelihood, self._held(), self._attributes)
        data, head = arrange(data, labels_or_head, head)
        examples, head = as_examples(data, dtype_of(self._network), self.ranks.size), as_head(head)
        made_by = self._keep.record()
        if self._made_by is not None and self.memories:
            self._keep.check(self._made_by)
        examples = self._keep.of(examples, device_of(self._network))
        if keywords:
            keywords = dict(checked_keywords(self._network, "end_task", keywords))
            examples = WithKeywords(examples, self._network, keywords)
        return examples, head, made_by

    def _prepared(self, x: Inputs, keywords: Mapping[str, Constant]) -> Inputs:
        """Inputs as the model takes them."""
        x = self._keep(as_tensors(x, dtype_of(self._network)), device_of(self._network))
        x = with_keywords(self._network, x, keywords)
        inputs.check_finite(x)
        return inputs.move(x, device_of(self._network))

    @property
    def _budget(self) -> int:
        """For work that is a chunk and nothing else."""
        return self.memory_budget or MEMORY_BUDGET

    def _room_for(self, examples: int) -> tuple[list[Memory], int, Select]:
        """What stays of the past when a task of that many examples has ended, its own points, and who selects them."""
        if self.total_memory is None:
            return list(self.memories), self.memory_size, self.select
        select = ownership.budgeted(self.select, self.total_memory)
        return *ownership.within(self.total_memory, self.memories, examples, self.likelihood, select), select

    def _known(self, name: str, like: Tensor, precision: Mapping[str, Tensor]) -> Tensor:
        """What is known of a weight's precision, and the prior where nothing is."""
        if name in precision:
            return growth.extended(precision[name], like, self._prior_precision)
        return torch.full_like(wide_weight(like), self._prior_precision, requires_grad=False)

    def _uninformed_nll(self) -> float:
        return uninformed_nll(self.likelihood, self._held())

    def _lost(self) -> list[int]:
        """The past tasks at whose memory the model's outputs are not finite."""
        return [task for task, moved in enumerate(self.drift()) if not math.isfinite(moved)]

    def _fixed_here(self) -> None:
        """Note that the means have been fixed at the present weights."""
        self._watch = WeightWatch(self._network, fixed=fingerprint(self._network), known=self._rows())
        self._attributes, self._place = attributes(self._network), self._place_of_model()

    def _rows(self) -> Mapping[str, Tensor]:
        """Tensors whose shapes say which rows of each weight were there when the means were fixed."""
        return self.precision

    def _place_of_model(self) -> Place:
        first = next(self._network.parameters(), None)
        if first is not None and first.is_floating_point():
            return first.device, first.dtype  # as below, and looked up in each step
        return device_of(self._network), dtype_of(self._network)

    def _check_place(self) -> None:
        """An error if the model has been moved, or its type changed, since the memory was computed."""
        if self.memories and (now := self._place_of_model()) != self._place:
            raise DataError(
                f"the model is {now[1]} on {now[0]}, what is kept of the past {self._place[1]} on {self._place[0]}; "
                f"bring it there: reg.to('{now[0]}', {now[1]})."
            )

    def _look(self) -> None:
        """What is checked once, at the first penalty: the weights it is computed at, and that nothing else matters."""
        if self._watch.fresh:
            self._grow()
        if self._watch.look():
            check_unmoved(self._network, self.likelihood, self._held(), self._attributes)

    def _adopted(self, site: "Remembering") -> list[Memory]:
        """What another regulariser has kept, where and as this one's model takes it."""
        if type(site) is not type(self):
            raise FrompError(f"{type(site).__name__} cannot be merged into {type(self).__name__}; give the same kind.")
        if site._prior_precision != self._prior_precision:
            raise FrompError(
                f"prior_precision is {self._prior_precision:g} here and {site._prior_precision:g} there; sites can be "
                "merged only if both began with the same."
            )
        kinds = [(type(one.likelihood), one.likelihood.settings()) for one in (self, site)]
        if kinds[0] != kinds[1]:
            raise FrompError(f"the likelihoods are {kinds[0]} and {kinds[1]}; sites can be merged only with the same.")
        if site._made_by is not None:
            self._keep.check(site._made_by)
        check_shapes(self._network, {name: list(value.shape) for name, value in site._rows().items()})
        (device, now), (_, then) = self._place_of_model(), site._place
        found, grown = [], bool(growth.grown(site._rows(), named_weights(self._network)))
        for memory, one in zip(site.memories, site._held(), strict=True):
            memory = memory.to(device, then, now)
            if grown:
                memory = growth.on_its_outputs(memory, len(one.mean), self._network)
            check_memory(self._network, self.likelihood, memory, len(one.mean))
            found.append(memory)
        return found
