"""Functional regularisation in general: a choice of points, of contexts and of metrics."""

import copy
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from fromp.contexts.context import Context, Points, Present
from fromp.contexts.past import Past
from fromp.contexts.present_batch import PresentBatch
from fromp.derivatives.model import (
    as_head,
    bare,
    device_of,
    dtype_of,
    evaluating,
    named_weights,
    outputs,
    outputs_of_parts,
    trainable,
)
from fromp.derivatives.sharded import is_split
from fromp.derivatives.watch import WeightWatch, as_fingerprint, check_alike, fingerprint
from fromp.foundation import inputs, storage
from fromp.foundation.arrays import Numbers
from fromp.foundation.checked import Setting, count, number
from fromp.foundation.collectives import ALONE, Ranks, ranks_of
from fromp.foundation.errors import CheckpointError, DataError, FrompError, FrompWarning
from fromp.foundation.examples import TaskData, arrange, as_examples
from fromp.foundation.inputs import Inputs
from fromp.foundation.shards import Shards
from fromp.foundation.state import State, check_finite, field, set_generator, tensor, weights
from fromp.gp import ggn_diagonal
from fromp.likelihoods import Likelihood
from fromp.memory import Memory, Score, Select, assess, check_scores, per_class, random_score, remember
from fromp.metrics.pointwise import Pointwise
from fromp.metrics.tied import Tied
from fromp.naming import LIKELIHOODS, built, description
from fromp.prior import wide_weight
from fromp.protocol import no_penalty


@dataclass(frozen=True)
class Hold:
    """One term of a penalty: strength * sum over past tasks of the mean distance over a context's points."""

    context: Context
    metric: Pointwise | Tied
    strength: float

    def __post_init__(self) -> None:
        number("strength", self.strength)
        if self.metric.of_labels and not self.context.labelled:
            raise FrompError(
                f"{type(self.context).__name__} has no labels to hold; give Labels() with Remembered or Mixtures."
            )
        if isinstance(self.metric, Tied) and not self.context.whole:
            raise FrompError(
                f"{self.metric} ties all remembered points of a task together, and {self.context} gives other points; "
                "hold it at Remembered()."
            )


class Functional(ABC):
    """Holds the network to what it was at the last task's end: the sum of `holds`, drawn anew for each penalty.

    memory_size: examples kept of each task, shared evenly between its classes.
    score, select: which examples are kept.
    seed: of all draws. The global random state is never touched.
    ranks: the processes that learn each task together, as for `FROMP`. They share the points of each step.
    """

    looks_at_minibatch = True
    memory_size = Setting(count)

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        memory_size: int = 200,
        *,
        score: Score = random_score,
        select: Select = per_class,
        seed: int = 0,
        ranks: Ranks | None = None,
    ) -> None:
        self._ranks = ranks
        trainable(model)
        if not isinstance(likelihood, Likelihood):
            raise FrompError(f"likelihood={likelihood} is not a likelihood; give one, such as Categorical().")
        self._model, self._likelihood = model, likelihood
        self.memory_size, self.score, self.select = memory_size, score, select
        self.precision: dict[str, Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)
        self._teacher: nn.Module | None = None
        self._past: Past | None = None
        self._fixed: list[list[Tensor | None]] = []  # of each past task and hold, what its metric has fixed there
        self._watch = WeightWatch(model)

    @property
    @abstractmethod
    def holds(self) -> Sequence[Hold]:
        """The terms of the penalty on the function."""

    weight_strength: float = 0.0
    """Strength of the parabola that holds the weights, by the GGN diagonal of the past tasks' data not kept."""

    @property
    def model(self) -> nn.Module:
        """The model that is held."""
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
    def memories(self) -> tuple[Memory, ...]:
        """What is kept of each past task's examples, in order."""
        return self._past.memories if self._past else ()

    def penalty(self, x: "Inputs | None" = None, head: Sequence[int] | None = None, f: Tensor | None = None) -> Tensor:
        """What is added to the mean nll: a scalar, zero before the first task has ended.

        x: the present minibatch, at which heads are held that are not being trained. head: the one that is trained on
        it, needed only if an earlier task has had the same. f: all outputs of the model at x, if they are known, which
        saves a pass; without it, dropout is off and batch statistics are fixed, as everywhere in the penalty.

        Several ranks share the points: each has the whole value, and the gradients' average is that of one process that
        has the minibatches of all ranks. Without gradients, one rank may ask alone, and nothing is drawn for the next.
        """
        if self._past is None:
            return no_penalty(self.model)
        self._watch.look()
        present = Present(x, as_head(head), f)
        if (
            x is None
            and self._past.heads
            and any(isinstance(h.context, PresentBatch) for h in self.holds if h.strength)
        ):
            warnings.warn(
                "the heads of past tasks are not held at the present minibatch, because it was not given; write "
                "penalty(x).",
                FrompWarning,
                stacklevel=2,
            )
        ranks = self.ranks if torch.is_grad_enabled() else ALONE
        shares = self._distances(list(self._points(self._past, present, ranks)))
        if self.weight_strength and self.precision:
            shares.append(self._parabola())
        own = torch.stack(shares).sum() if shares else no_penalty(self.model)
        return own if ranks.size == 1 else own + (ranks.total(own) / ranks.size - own).detach()

    def end_task(
        self,
        data: TaskData,
        *labels_or_head: Numbers | Sequence[int] | None,
        head: Sequence[int] | None = None,
        scores: Numbers | None = None,
    ) -> None:
        """Keep examples of the task, and the network as it is now; the data can be given as to `FROMP.end_task`.

        If anything is wrong with them there is an error, and nothing has changed.
        """
        ranks = self.ranks
        with ranks.agreement():
            data, head = arrange(data, labels_or_head, head)
            examples, head = as_examples(data, dtype_of(self.model), ranks.size), as_head(head)
            teacher = _frozen(self.model)
        draws = self._generator.get_state()
        try:
            check_alike(self.model, head, ranks)
            weigh = partial(assess, self.model, examples, self.likelihood, self._generator, head, self.score)
            computed, classes = ranks.in_turn(weigh, self._generator)
            with ranks.agreement():
                scores = computed if scores is None else torch.as_tensor(scores).to(computed.device)
                check_scores(scores, len(examples))
            task = Shards(examples, ranks)
            scores, classes = task.of_all(scores), task.of_all(classes)
            memory = remember(task, scores, classes, self.memory_size, head, self.select)
            for hold in self.holds:
                hold.context.check(memory)
            precision = self._precision_with(task, memory, ranks) if self.weight_strength else self.precision
            fixed = [
                h.metric.fixed(self.model, memory, task, self.likelihood) if isinstance(h.metric, Tied) else None
                for h in self.holds
            ]
            found = [one.state_dict() for one in (*self.memories, memory)]
            found_state = {"network": _tensors(teacher), "precision": precision, "tasks": found, "fixed": fixed}
            check_finite(found_state, f"the end of task {len(found) - 1}")
            past = Past([*self.memories, memory], teacher)
        except BaseException:
            self._generator.set_state(draws)
            raise
        self.precision, self._teacher, self._past = precision, teacher, past
        self._fixed = [*self._fixed, fixed]
        self._watch = WeightWatch(self.model)

    def save(self, path: str | os.PathLike) -> None:
        """Write everything but the model's present weights into a folder, atomically; of several ranks the first."""
        if self.ranks.rank == 0:
            storage.write(path, type(self).__name__, self.state_dict())

    def state_dict(self) -> State:
        """Memory, the old network and the draws; the model's present weights are not part of it."""
        return {
            "likelihood": description(LIKELIHOODS, self.likelihood),
            "fingerprint": fingerprint(self.model),
            "dtype": str(dtype_of(self.model)).removeprefix("torch."),
            "teacher": _tensors(self._teacher) if self._teacher else None,
            "precision": dict(self.precision),
            "memories": [memory.state_dict() for memory in self.memories],
            "fixed": self._fixed,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: State) -> None:
        """Return to a state that `state_dict` gave, if the model is of the same kind.

        Everything is checked before anything is changed. The settings stay those of this regulariser.
        """
        device = device_of(self.model)
        memories = [self._cast(Memory.from_state(m, device), state) for m in field(state, "memories", list)]
        precision = weights(state, "precision", named_weights(self.model))
        if wrong := [name for name, value in precision.items() if bool((value < 0).any())]:
            raise CheckpointError(f"the saved precision of '{wrong[0]}' is negative; restore it from a copy.")
        fixed = self._fixed_in(state, memories)
        saved = field(state, "teacher", dict, type(None))
        if (saved is None) != (not memories):
            raise CheckpointError(f"{len(memories)} memories were saved beside the wrong network; restore a copy.")
        teacher = past = None
        if saved is not None:
            teacher = _frozen(self.model)
            _restore(teacher, saved)
            try:
                past = Past(memories, teacher)
                for memory in memories:
                    width = outputs(teacher, inputs.take(memory.inputs, slice(0, 2)), memory.head).shape[1]
                    self.likelihood.check_labels(memory.labels, width)
            except (RuntimeError, TypeError, IndexError, ValueError) as error:
                raise CheckpointError(
                    f"the saved memory does not fit the model ({error}); load into the same model."
                ) from error
        generator = torch.Generator()
        set_generator(generator, state, "generator")
        watch = WeightWatch(self.model, as_fingerprint(field(state, "fingerprint", dict)) if past else None)
        self.precision, self._teacher, self._past, self._generator = precision, teacher, past, generator
        self._fixed = fixed
        self._watch = watch

    @classmethod
    def _loaded(cls, path: str | os.PathLike, model: nn.Module, likelihood: Likelihood | None, make: Any) -> Self:
        """What `save` wrote, in the regulariser that `make(state, likelihood)` gives."""
        state = storage.read(path, cls.__name__)
        trainable(model)
        if likelihood is None:
            try:
                likelihood = built(LIKELIHOODS, field(state, "likelihood", dict), "likelihood")
            except CheckpointError:
                raise
            except (FrompError, TypeError) as error:
                raise CheckpointError(f"the saved likelihood is wrong: {error} Restore the folder.") from error
        reg = make(state, likelihood)
        reg.load_state_dict(state)
        return reg

    def _points(self, past: Past, present: Present, ranks: Ranks) -> Iterator[tuple[Hold, Points]]:
        """What each term holds in this step, this rank's share of it."""
        before = None if torch.is_grad_enabled() else self._generator.get_state()
        for hold in self.holds:
            if hold.strength:
                for points in hold.context.draw(past, present, self._generator):
                    together = hold.context.of_rank or isinstance(hold.metric, Tied) or ranks.size == 1
                    yield hold, points if together else points.share(ranks)
        if before is not None:
            self._generator.set_state(before)

    def _distances(self, terms: Sequence[tuple[Hold, Points]]) -> list[Tensor]:
        """The share of each term, after one pass of each network."""
        assert self._teacher is not None
        unknown = [(hold, points) for hold, points in terms if points.old is None and not hold.metric.of_labels]
        with evaluating(self.model):
            now = iter(outputs_of_parts(self.model, [points.inputs for _, points in terms if points.now is None]))
            with torch.no_grad():
                then = iter(outputs_of_parts(self._teacher, [points.inputs for _, points in unknown]))
        shares = []
        for hold, points in terms:
            f = next(now) if points.now is None else points.now
            self._check_width(f)
            f = points.held(f)
            old = f if hold.metric.of_labels else points.held(next(then)) if points.old is None else points.old
            if isinstance(hold.metric, Tied):
                at = list(self.holds).index(hold)
                parts = ((f[own] - old[own], self._fixed[task][at]) for task, own in points.tasks)
                shares += [hold.strength * hold.metric.distance(d, fixed) for d, fixed in parts if fixed is not None]
                continue
            distance = hold.metric.distance(self.likelihood, f, old, points.labels)
            shares.append(hold.strength * points.scale * distance.mean())
        return shares

    def _precision_with(self, task: Shards, memory: Memory, ranks: Ranks) -> dict[str, Tensor]:
        """The precision of the past tasks, and the GGN of what is not kept of this one, divided by its size."""
        names = tuple(dict.fromkeys([*self.precision, *trainable(self.model)]))
        left = torch.ones(len(task), dtype=torch.bool)
        left[memory.indices] = False
        others = task.own(left.nonzero().flatten())
        weights = named_weights(self.model)
        precision = {name: self.precision.get(name, torch.zeros_like(wide_weight(weights[name]))) for name in names}
        ggn = {name: torch.zeros_like(known) for name, known in precision.items()}
        with ranks.agreement():
            if len(others):
                ggn = ggn_diagonal(self.model, names, others, self.likelihood, memory.head)
        return {name: precision[name] + ranks.total(g) / len(task) for name, g in ggn.items()}

    def _fixed_in(self, state: State, memories: Sequence[Memory]) -> list[list[Tensor | None]]:
        """What a state has fixed for the metrics of `holds`, in each task."""
        tied = [isinstance(hold.metric, Tied) for hold in self.holds]
        saved = state.get("fixed", [[None] * len(tied) for _ in memories])  # before there were such metrics
        if len(saved) != len(memories) or any([one is not None for one in own] != tied for own in saved):
            raise CheckpointError("the state was saved with other metrics; give the same `holds`.")
        found = []
        for own, memory in zip(saved, memories, strict=True):
            i = len(memory)
            kept = (None if one is None else tensor({"fixed": one}, "fixed", -1, i, i, floating=True) for one in own)
            found.append([None if one is None else one.to(device_of(self.model)) for one in kept])
        return found

    def _check_width(self, f: Tensor) -> None:
        """An error if the model has other outputs than when its last task ended."""
        assert self._past is not None
        if f.shape[1] != self._past.num_outputs:
            raise DataError(
                f"the model has {f.shape[1]} outputs, it had {self._past.num_outputs} when its last task ended; "
                "give a model all its outputs from the start."
            )

    def _parabola(self) -> Tensor:
        """weight_strength / 2 sum_w v_w (w - w_old)^2: a scalar."""
        assert self._teacher is not None
        now, then = named_weights(self.model), named_weights(self._teacher)
        parts = [(v * (now[name] - then[name]).square()).sum() for name, v in self.precision.items()]
        return 0.5 * self.weight_strength * torch.stack(parts).sum()

    def _cast(self, memory: Memory, state: State) -> Memory:
        """A memory of a model in the saved precision, for one in the present precision."""
        then, now = getattr(torch, field(state, "dtype", str), None), dtype_of(self.model)
        return replace(memory, inputs=inputs.transform(lambda p: p.to(now) if p.dtype == then else p, memory.inputs))


@final
class Composed(Functional):
    """Any choice of points, contexts and metrics: `FROMP` and its relatives in one frame.

        Composed(model, Categorical(), [Hold(Remembered(), Logits(), 1.0)])      # functional L2
        Composed(model, Categorical(), [Hold(PresentBatch(), Divergence(2), 1.0)])  # learning without forgetting
        Composed(model, Categorical(), [Hold(Remembered(), DataWide(), 1.0)])    # sparse function-space representation

    holds: the terms of the penalty.
    weight_strength: of the parabola around the old weights, by the GGN diagonal of the past tasks' data that are not
        among the points kept; 0 for none.
    """

    weight_strength = Setting(number)

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        holds: Sequence[Hold],
        memory_size: int = 200,
        *,
        weight_strength: float = 0.0,
        score: Score = random_score,
        select: Select = per_class,
        seed: int = 0,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__(model, likelihood, memory_size, score=score, select=select, seed=seed, ranks=ranks)
        self._holds, self.weight_strength = tuple(holds), weight_strength

    @property
    def holds(self) -> Sequence[Hold]:
        return self._holds


def _frozen(model: nn.Module) -> nn.Module:
    """A copy of the network that stays as it is."""
    if any(map(is_split, named_weights(model).values())):
        raise FrompError(
            "the weights are split over ranks, as by fully_shard, and the network is held to a copy of itself, which "
            "FSDP2 does not make; use FROMP, which keeps no copy, or DistributedDataParallel."
        )
    return copy.deepcopy(bare(model)).eval().requires_grad_(False)


def _tensors(network: nn.Module) -> State:
    return {name: value.clone() for name, value in network.state_dict().items() if isinstance(value, Tensor)}


def _restore(network: nn.Module, saved: State) -> None:
    """Give a network the weights and buffers that `_tensors` took, if they are its own."""
    like = _tensors(network)
    for name in {**saved, **like}:
        mine, its = (list(field(of, name, Tensor).shape) if name in of else "missing" for of in (like, saved))
        if mine != its:
            raise CheckpointError(f"'{name}' is {mine} in the model and {its} in the saved one; use the same model.")
    for name, _ in network.named_parameters():
        tensor(saved, name, floating=True)
    network.load_state_dict({name: value.to(like[name].device) for name, value in saved.items()}, strict=False)
