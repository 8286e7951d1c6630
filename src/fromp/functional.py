"""Functional regularisation in general: a choice of points, of contexts and of metrics."""

import os
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from fromp.constancy import Attributes
from fromp.contexts.context import Present
from fromp.contexts.past import Constants, Past
from fromp.contexts.present_batch import PresentBatch
from fromp.derivatives.keywords import checked_keywords, with_keywords
from fromp.derivatives.model import (
    Head,
    Output,
    Picked,
    as_head,
    named_weights,
    trainable,
)
from fromp.derivatives.runaway import RunawayWatch
from fromp.derivatives.watch import WeightWatch, check_alike, fingerprint
from fromp.foundation import inputs, storage
from fromp.foundation.arrays import Numbers, as_tensors
from fromp.foundation.collectives import ALONE, Ranks
from fromp.foundation.errors import CheckpointError, FrompError, FrompWarning
from fromp.foundation.examples import TaskData
from fromp.foundation.inputs import Constant, Inputs, is_constant
from fromp.foundation.shards import Shards
from fromp.foundation.state import State, check_finite, field, renamed
from fromp.functional_state import completed, restored
from fromp.growth import grown
from fromp.holding import Fixed, Hold, distances, drawn
from fromp.keeping import Transform
from fromp.likelihoods import Likelihood
from fromp.memory import Held, Memory, Score, Select, assess, check_scores, per_class, random_score, remember
from fromp.metrics.tied import Tied
from fromp.naming import LIKELIHOODS, built, description, name_of
from fromp.old_network import frozen, tensors_of
from fromp.parabola import parabola, precision_with
from fromp.prior import wide
from fromp.protocol import no_penalty
from fromp.remembering import Remembering

WAY_OUT = (
    "Hold probabilities, which bounds the penalty: metric=Divergence(2.0), the default of MixedPast. Or lower the "
    "strength or the learning rate, or clip the gradient."
)


class HeldAt(NamedTuple):
    """The old network's means at a memory."""

    memory: Memory
    mean: Tensor  # (c, i)


class Functional(Remembering):
    """Holds the network to what it was at the last task's end: the sum of `holds`, drawn anew for each penalty.

    memory_size, total_memory, output, keep: as for `FROMP`.
    score, select: which examples are kept.
    seed: of all draws. The global random state is never touched.
    ranks: the processes that learn each task together, as for `FROMP`. They share the points of each step.
    """

    looks_at_minibatch = True
    settings: ClassVar[Sequence[str]]
    """The names of the settings that a state records."""

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        memory_size: int = 200,
        *,
        score: Score = random_score,
        select: Select = per_class,
        seed: int = 0,
        output: Output | None = None,
        total_memory: int | None = None,
        keep: Transform | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__(
            model,
            likelihood,
            memory_size,
            score=score,
            select=select,
            seed=seed,
            output=output,
            total_memory=total_memory,
            keep=keep,
            ranks=ranks,
        )
        self._teacher: nn.Module | None = None
        self._set_past(None, [])

    @property
    @abstractmethod
    def holds(self) -> Sequence[Hold]:
        """The terms of the penalty on the function."""

    weight_strength: float = 0.0
    """Strength of the parabola that holds the weights, by the GGN diagonal of the past tasks' data not kept."""

    @property
    def memories(self) -> tuple[Memory, ...]:
        return self._past.memories if self._past else ()

    def penalty(
        self,
        x: "Inputs | None" = None,
        head: Sequence[int] | None = None,
        f: Tensor | None = None,
        **keywords: Constant,
    ) -> Tensor:
        """What is added to the mean nll: a scalar, zero before the first task has ended.

        x: the present minibatch, at which heads are held that are not being trained. head: the one that is trained on
        it, needed only if an earlier task has had the same. f: all outputs of the model at x, if they are known, which
        saves a pass; without it, dropout is off and batch statistics are fixed, as everywhere in the penalty.
        keywords: further arguments of the model's forward for x, such as task="b".

        Several ranks share the points: each has the whole value, and the gradients' average is that of one process that
        has the minibatches of all ranks. Without gradients, one rank may ask alone, and nothing is drawn for the next.
        """
        if self._past is None:
            return no_penalty(self._network)
        self._check_place()
        if not torch.compiler.is_compiling():
            self._look()
        head = as_head(head)
        memories = self._beside(head)
        if any(now is not then for now, then in zip(memories, self.memories, strict=True)):
            self._set_past(self._past_of(memories), self._fixed)
        holds = self.holds
        looks = any(isinstance(hold.context, PresentBatch) for hold in holds if hold.strength)
        if x is None and looks and self._past.heads:
            warnings.warn(
                "the heads of past tasks are not held at the present minibatch, because it was not given; write "
                "penalty(x).",
                FrompWarning,
                stacklevel=2,
            )
        present = self._present(x, head, f, checked_keywords(self._network, "penalty", keywords))
        ranks = self.ranks if torch.is_grad_enabled() else ALONE
        terms = list(drawn(holds, self._past, present, self._generator, ranks))
        shares = distances(terms, self._network, self._past.teacher, self.likelihood, self._fixed_of)
        if self.weight_strength and self.precision:
            shares.append(self._parabola())
        penalty = sum(shares[1:], shares[0]) if shares else no_penalty(self._network)
        if ranks.size > 1:
            penalty = penalty + (ranks.total(penalty) / ranks.size - penalty).detach()
        self._runaway.look(penalty)
        return penalty

    def end_task(
        self,
        data: TaskData,
        *labels_or_head: Numbers | Sequence[int] | None,
        head: Sequence[int] | None = None,
        scores: Numbers | None = None,
        **keywords: Constant,
    ) -> None:
        """Keep examples of the task, and the network as it is now; everything can be given as to `FROMP.end_task`.

        If anything is wrong with them there is an error, and nothing has changed.
        """
        ranks = self.ranks
        with ranks.agreement():
            examples, head, made_by = self._arranged(data, labels_or_head, head, keywords)
            teacher = frozen(self.model)
        draws = self._generator.get_state()
        try:
            network = self._network
            check_alike(network, head, ranks)
            weigh = partial(assess, network, examples, self.likelihood, self._generator, head, self.score)
            computed, classes = ranks.in_turn(weigh, self._generator)
            with ranks.agreement():
                scores = computed if scores is None else torch.as_tensor(scores).to(computed.device)
                check_scores(scores, len(examples))
            task = Shards(examples, ranks)
            scores, classes = task.of_all(scores), task.of_all(classes)
            before, size, select = self._room_for(len(task))
            memory = remember(task, scores, classes, size, head, select)
            memories = [*self._beside(head, before), memory]
            self._check_tied(before)
            for hold in self.holds:
                hold.context.check(memory)
            precision = self._precision_with(task, memory, ranks) if self.weight_strength else self.precision
            fixed = [
                h.metric.fixed(network, memory, task, self.likelihood) if isinstance(h.metric, Tied) else None
                for h in self.holds
            ]
            found = {"precision": precision, "tasks": [one.state_dict() for one in memories], "fixed": fixed}
            check_finite(found | {"network": tensors_of(teacher)}, f"the end of task {len(memories) - 1}")
            past = Past(memories, self._as_network(teacher))
        except BaseException:
            self._generator.set_state(draws)
            raise
        self.precision, self._teacher, self._made_by = precision, teacher, made_by
        self._set_past(past, [*self._fixed, fixed])
        self._fixed_here()

    def save(self, path: str | os.PathLike) -> None:
        """Write everything but the model's present weights into a folder, atomically; of several ranks the first."""
        if self.ranks.rank == 0:
            storage.write(path, type(self).__name__, self.state_dict())

    def state_dict(self) -> State:
        """Memory, the old network and the draws; the model's present weights are not part of it."""
        teacher = tensors_of(self._teacher) if self._teacher else None
        settings = {name: getattr(self, name) for name in self.settings}
        return {
            "settings": settings | {"output": None if self._output is None else name_of({}, self._output)},
            "likelihood": description(LIKELIHOODS, self.likelihood),
            "fingerprint": fingerprint(self._network, self._rows()),
            "dtype": str(self._place[1]).removeprefix("torch."),
            "weights": {name: list(value.shape) for name, value in (teacher or {}).items()},
            "teacher": teacher,
            "precision": dict(self.precision),
            "memories": [memory.state_dict() for memory in self.memories],
            "fixed": self._fixed,
            "generator": self._generator.get_state(),
            "keep": self._made_by,
        }

    def load_state_dict(self, state: State, prefix: str = "") -> None:
        """Return to a state that `state_dict` gave, if the model is of the same kind.

        Everything is checked before anything is changed. The settings stay those of this regulariser. prefix: by which
        the names of the model's parameters are longer, or shorter, than those of the state.
        """
        mine = tensors_of(self.model)
        state = renamed(completed(state), ("weights", "teacher", "precision", "fingerprint"), prefix, mine)
        place = self._place_of_model()
        found = restored(state, self.model, self._as_network, self.likelihood, self.holds, self._keep, place)
        self.precision, self._generator, self._made_by = found.precision, found.generator, found.made_by
        self._teacher = found.teacher
        self._set_past(found.past, found.fixed)
        fixed = fingerprint(found.teacher) if found.teacher else None
        self._watch = WeightWatch(self._network, found.fingerprint, fixed, self._rows())
        self._attributes, self._place = Attributes(), place

    @classmethod
    def _loaded(
        cls, path: str | os.PathLike, model: nn.Module, likelihood: Likelihood | None, make: Any, prefix: str
    ) -> Self:
        """What `save` wrote, in the regulariser that `make(settings, likelihood)` gives."""
        state = completed(storage.read(path, cls.__name__))
        trainable(model)
        settings = field(state, "settings", dict)
        try:
            likelihood = likelihood or built(LIKELIHOODS, field(state, "likelihood", dict), "likelihood")
            reg = make({name: settings.get(name) for name in cls.settings}, likelihood)
        except CheckpointError:
            raise
        except (FrompError, TypeError) as error:
            raise CheckpointError(f"the saved settings are wrong: {error} Restore the folder from a copy.") from error
        if reg._output is None and (name := settings.get("output")) is not None:
            raise CheckpointError(f"the saved output '{name}' is your own; give it again: load(..., output=...).")
        reg.load_state_dict(state, prefix)
        return reg

    def _present(self, x: "Inputs | None", head: Head, f: Tensor | None, keywords: Mapping[str, Constant]) -> Present:
        """The minibatch as the model takes it, under its own arguments and under others."""
        if x is None:
            return Present(None, head)
        device, dtype = self._place
        x = self._keep(as_tensors(x, dtype), device)
        given = {**inputs.constants(x), **keywords}
        bare = {name: part for name, part in x.items() if not is_constant(part)} if isinstance(x, Mapping) else x

        def under(constants: Constants) -> Inputs:
            return with_keywords(self._network, bare, dict(constants))

        constants = tuple(sorted(given.items()))
        return Present(under(constants), head, f, constants, under)

    def _beside(self, head: Head, memories: Sequence[Memory] | None = None) -> tuple[Memory, ...]:
        """The memories, where those with all outputs have them as their head once a task trains others beside them."""
        memories = self.memories if memories is None else memories
        if self._past is None or head is None or all(memory.head is not None for memory in memories):
            return tuple(memories)
        widths = [range(total) for _, total in self._past.outputs()]
        return tuple(
            replace(memory, head=tuple(had)) if memory.head is None and set(head).isdisjoint(had) else memory
            for memory, had in zip(memories, widths, strict=True)
        )

    def _precision_with(self, task: Shards, memory: Memory, ranks: Ranks) -> dict[str, Tensor]:
        """The precision when a task has ended whose memory this is."""
        present = named_weights(self._network)
        names = dict.fromkeys([*self.precision, *trainable(self._network)])
        known = {name: self._known(name, present[name], self.precision) for name in names}
        return precision_with(known, self._network, task, memory, self.likelihood, ranks)

    def _parabola(self) -> Tensor:
        return parabola(named_weights(self.model), self._rows(), self.precision, self.weight_strength)

    def _fixed_of(self, hold: Hold, task: int) -> Tensor | None:
        """What the metric of a hold has fixed at a task."""
        return self._fixed[task][self.holds.index(hold)]

    def _check_tied(self, memories: Sequence[Memory], what: str = "points cannot go") -> None:
        """An error if points of a task are to go, or to come, whose metric ties them together."""
        tied = next((hold.metric for hold in self.holds if isinstance(hold.metric, Tied)), None)
        if tied is not None and any(a is not b for a, b in zip(memories, self.memories, strict=True)):
            raise FrompError(
                f"{tied} ties the points of a task together by data that are gone, so that {what}; forget the whole "
                "task, or hold it with another metric."
            )

    def _as_network(self, teacher: nn.Module) -> nn.Module:
        return teacher if self._output is None else Picked(teacher, self._output)

    def _past_of(self, memories: Sequence[Memory]) -> Past | None:
        assert self._teacher is not None
        return Past(memories, self._as_network(self._teacher)) if memories else None

    def _set_past(self, past: Past | None, fixed: list[Fixed]) -> None:
        self._past, self._fixed = past, fixed
        if past is None:
            self._teacher = None
        self._runaway = RunawayWatch(self._uninformed_nll, self._lost, WAY_OUT)

    @property
    def _prior_precision(self) -> float:
        return 0.0

    def _held(self) -> Sequence[Held]:
        old = self._past.outputs() if self._past else []
        return [
            HeldAt(
                memory if memory.head is not None else replace(memory, head=tuple(range(f.shape[1]))),
                self.likelihood.mean(f).T,
            )
            for memory, (f, _) in zip(self.memories, old, strict=True)
        ]

    def _kept_of_tasks(self) -> Sequence[State]:
        old = self._past.outputs() if self._past else []
        every = zip(self.memories, old, self._fixed, strict=True)
        return [{"memory": memory.state_dict(), "old": f, "fixed": fixed} for memory, (f, _), fixed in every]

    def _rows(self) -> Mapping[str, Tensor]:
        return named_weights(self._teacher) if self._teacher else {}

    def _leave(self, place: int, left: Tensor) -> None:
        memories, fixed = [*self.memories], [*self._fixed]
        if len(left):
            memories[place] = memories[place].take(left)
            self._check_tied(memories)
        else:
            del memories[place], fixed[place]
        self._set_past(self._past_of(memories), fixed)

    def _hold_anew(self, memories: Sequence[Memory], precision: dict[str, Tensor]) -> None:
        if any(isinstance(hold.metric, Tied) for hold in self.holds):
            raise FrompError("a metric that ties points together cannot be merged; hold the sites with another one.")
        teacher = frozen(self.model)
        past = Past(memories, self._as_network(teacher)) if memories else None
        self.precision, self._teacher = precision, teacher
        self._set_past(past, [[None] * len(self.holds) for _ in memories])

    def _move(self, device: torch.device, then: torch.dtype, now: torch.dtype) -> None:
        if self._teacher is None:
            return
        self._teacher.to(device, now)
        moved = [[None if p is None else p.to(device, wide(now)) for p in own] for own in self._fixed]
        self._set_past(self._past_of([memory.to(device, then, now) for memory in self.memories]), moved)

    def _grow(self) -> bool:
        found = grown(self._rows(), named_weights(self._network))
        if found:
            self._watch.check_rows(found)
        return bool(found)
