"""FROMP, functional regularisation of memorable past: Algorithm 1, as a penalty for any training loop."""

import math
import operator
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias, final

import torch
from torch import Tensor, nn

from fromp import formats, gp, growth, ownership
from fromp.compatible import check_anchor, check_shapes
from fromp.constancy import Attributes, attributes, check_attributes, check_unmoved, means
from fromp.curvature import Curvature
from fromp.derivatives.budget import MEMORY_BUDGET, points_per_pass
from fromp.derivatives.keywords import WithKeywords, checked_keywords, with_keywords
from fromp.derivatives.model import (
    Output,
    Picked,
    Weights,
    as_head,
    detached,
    device_of,
    dtype_of,
    named_weights,
    trainable,
)
from fromp.derivatives.runaway import RunawayWatch
from fromp.derivatives.sharded import on_whole_weights
from fromp.derivatives.watch import WeightWatch, check_alike, fingerprint
from fromp.foundation import inputs, storage
from fromp.foundation.arrays import Numbers, as_tensors
from fromp.foundation.checked import Setting, count, count_or_none, number, number_or_none, positive
from fromp.foundation.collectives import ALONE, Ranks, ranks_of
from fromp.foundation.errors import CheckpointError, DataError, FrompError, warn
from fromp.foundation.examples import TaskData, arrange, as_examples
from fromp.foundation.inputs import Constant, Inputs
from fromp.foundation.shards import Shards
from fromp.foundation.state import State, check_finite, field, flatten, renamed
from fromp.inspection import Inspection, inspect
from fromp.keeping import Keep, Transform
from fromp.likelihoods import Likelihood
from fromp.memory import (
    Memory,
    Score,
    Select,
    assess,
    check_scores,
    memorability,
    per_class,
    remember,
)
from fromp.metrics.full_kernel import FullKernel
from fromp.metrics.kernel import Kernel
from fromp.naming import CURVATURES, KERNELS, LIKELIHOODS, SCORES, SELECTIONS, built, description, name_of
from fromp.prior import Anchor, FunctionalPrior, OutputsChanged, wide, wide_weight
from fromp.protocol import no_penalty
from fromp.restoring import SETTINGS, restored, saved_options
from fromp.uncertainty import Uncertainty, those_of

Place: TypeAlias = tuple[torch.device, torch.dtype]
NO_TASKS = torch.empty(0, dtype=torch.long)


@final
class FROMP:
    """Holds a network's outputs in place at the most memorable examples of its past tasks.

        reg = FROMP(model, Categorical(), tau=0.5, memory_size=200)
        loss = cross_entropy(model(x), y) + reg.penalty()  # in the training loop
        reg.end_task((x, y))                               # after each task

    tau: strength of the penalty in units of N, so that `mean nll + penalty` is Eq. (8) divided by N.
    memory_size: examples kept of each task, shared evenly between its classes.
    total_memory: examples kept of all tasks together, shared evenly between them, instead of `memory_size`: when a task
        ends, those before it lose points, the lowest scores within each class first.
    prior_precision: delta, the precision of the weights before any data.
    jitter: added to the kernel's diagonal; by default as much as bounds the penalty by what labels at the memory would
        cost (`prior.bounding_jitter`), so that no optimiser is thrown off by it.
    kernel: `FullKernel`, or `IdentityKernel` for the L2 variants.
    curvature: `ExactGGN()`, or `SignGGN()`, which takes one backward pass per example however many classes there are.
    score, select: which examples are kept; `random_score` makes it FRORP, `top` ignores the classes.
    tasks_per_step: draw this many past tasks for each penalty, in turns, and scale it up, so that a step's cost stays
        the same however many tasks there are; over a round of turns it is the full one, and its noise costs accuracy.
    seed: of the draws that `random_score`, `tasks_per_step` and `SignGGN` make. The global random state is never
        touched.
    memory_budget: bytes that a chunk of the once-per-task work may hold.
    output: picks the outputs f, (b, c), out of what the model returns. It is needed only where they are neither that
        itself, nor its `logits`, nor the first of a tuple.
    keep: a frozen module or a function, such as the trunk of a network whose head is `model`: what it makes of an input
        is kept in the input's place, and given to the model. `end_task` and `predict` take the inputs themselves.
    ranks: the processes that learn each task together; those of a DistributedDataParallel model, or of the default
        process group if there is one, unless given. Each calls `end_task` with its own part of the task.
    """

    tau = Setting(number)
    memory_size = Setting(count)
    prior_precision = Setting(positive)
    jitter = Setting(number_or_none)
    tasks_per_step = Setting(count_or_none)
    memory_budget = Setting(count)
    total_memory = Setting(count_or_none)

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        tau: float = 0.5,
        memory_size: int = 200,
        prior_precision: float = 1e-5,
        jitter: float | None = None,
        *,
        kernel: type[Kernel] = FullKernel,
        score: Score = memorability,
        select: Select = per_class,
        tasks_per_step: int | None = None,
        seed: int = 0,
        memory_budget: int = MEMORY_BUDGET,
        output: Output | None = None,
        ranks: Ranks | None = None,
        total_memory: int | None = None,
        keep: Transform | None = None,
        curvature: Curvature = gp.EXACT,
    ) -> None:
        self._ranks = ranks
        trainable(model)
        if not isinstance(likelihood, Likelihood):
            raise FrompError(f"likelihood={likelihood} is not a likelihood; give one, such as Categorical().")
        self._model, self._likelihood = model, likelihood
        self._output, self._keep = output, Keep(keep)
        self._made_by: State | None = None  # the record of `keep` when the first task ended
        self._network = model if output is None else Picked(model, output)  # the same, as a function that gives f
        self.tau, self.memory_size, self.prior_precision, self.jitter = tau, memory_size, prior_precision, jitter
        self.kernel, self.score, self.select, self.tasks_per_step = kernel, score, select, tasks_per_step
        self.memory_budget, self.total_memory, self.curvature = memory_budget, total_memory, curvature
        self.precision: dict[str, Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)
        self._prior: FunctionalPrior | None = None
        self._turns = NO_TASKS  # past tasks in the order in which they are drawn next
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
    def memories(self) -> tuple[Memory, ...]:
        """What is kept of each past task, in order; `forget` removes it."""
        return tuple(anchor.memory for anchor in self._anchors())

    def __repr__(self) -> str:
        """What is held: tasks, points, heads and bytes."""
        tensors, _ = flatten(self.state_dict())
        kept = sum(value.nbytes for value in tensors.values()) / 2**20
        points = sum(map(len, self.memories))
        heads = len({memory.head for memory in self.memories})
        return (
            f"FROMP({type(self.model).__name__}, {type(self.likelihood).__name__}, tau={self.tau:g}, "
            f"memory_size={self.memory_size}: "
            f"{len(self.memories)} tasks, {points} points, {heads} heads, {kept:.1f} MiB)"
        )

    def penalty(self) -> Tensor:
        """tau / 2 sum_s (m_s - m0_s)' K_s^-1 (m_s - m0_s), Eq. (8) divided by N: a scalar; zero before any task.

        Several ranks share the points: each has the whole value, and the gradients' average is that of one process.
        """
        if self._prior is None:
            return no_penalty(self._network)
        self._check_place()
        if not torch.compiler.is_compiling():
            self._look()
        ranks = self.ranks if torch.is_grad_enabled() else ALONE  # a value alone may be asked for on one rank
        past, scale, tasks = len(self._prior.anchors), 1.0, None
        if self.tasks_per_step is not None and self.tasks_per_step < past:
            scale, tasks = past / self.tasks_per_step, self._draw(past, self.tasks_per_step)
        try:
            distance = self._prior.squared_distance(self._network, tasks, ranks)
        except OutputsChanged:
            if not self._grow():
                raise
            distance = self._prior.squared_distance(self._network, tasks, ranks)
        penalty = 0.5 * self.tau * scale * (distance if torch.is_grad_enabled() else distance.detach())
        self._runaway.look(penalty)
        return penalty

    @on_whole_weights
    def end_task(
        self,
        data: TaskData,
        *labels_or_head: Numbers | Sequence[int] | None,
        head: Sequence[int] | None = None,
        scores: Numbers | None = None,
        **keywords: Constant,
    ) -> None:
        """Remember a task: its memorable examples, its share of the precision, and the prior at today's weights.

            end_task((x, y))  # or x, y: tensors, arrays or lists; or a Dataset, a DataLoader, a list of minibatches,
            end_task(batch, head=[2, 3])  # or a dict with 'labels', whose other entries are the model's inputs

        head: the task's output indices, in which its labels count. scores: one number for each example, to be used
        instead of `score`. keywords: further arguments of the model's forward, such as task="b", which are kept with
        the task. If anything is wrong with them there is an error, and nothing has changed.
        """
        ranks = self.ranks
        with ranks.agreement():
            self._check_place()
            self._grow()
            check_shapes(self._network, {name: list(value.shape) for name, value in self.precision.items()})
            check_attributes(self._network, self.likelihood, self._anchors(), self._attributes)
            data, head = arrange(data, labels_or_head, head)
            examples, head = as_examples(data, dtype_of(self._network), ranks.size), as_head(head)
            made_by = self._keep.record()
            if self._made_by is not None and self._prior is not None:
                self._keep.check(self._made_by)
            examples = self._keep.of(examples, device_of(self._network))
            if keywords:
                keywords = dict(checked_keywords(self._network, "end_task", keywords))
                examples = WithKeywords(examples, self._network, keywords)
        draws = self._generator.get_state()
        try:
            check_alike(self._network, head, ranks)
            weigh = partial(assess, self._network, examples, self.likelihood, self._generator, head, self.score)
            computed, classes = ranks.in_turn(partial(weigh, self.memory_budget), self._generator)
            with ranks.agreement():
                scores = computed if scores is None else torch.as_tensor(scores).to(computed.device)
                check_scores(scores, len(examples))
            task = Shards(examples, ranks)
            scores, classes = task.of_all(scores), task.of_all(classes)
            past, size, select = self._room_for(len(task))
            memory = remember(task, scores, classes, size, head, select)
            if self.score is memorability and not bool(scores.any()):
                warn(
                    f"the model is certain of all {len(task)} examples (every score is 0): nothing tells which are "
                    "memorable, and where the outputs are saturated the penalty has no gradient; train with less "
                    "confidence (fewer steps, weight decay, label smoothing)."
                )
            memories = [*past, memory]
            names = tuple(dict.fromkeys([*self.precision, *trainable(self._network)]))
            seed = int(torch.randint(2**62, (), generator=self._generator)) if self.curvature.random else 0
            ggn = partial(gp.ggn_diagonal, self._network, names, examples, self.likelihood, head, self.memory_budget)
            with ranks.agreement():
                share = ggn(self.curvature, seed + ranks.rank)
            added = {name: ranks.total(diagonal) for name, diagonal in share.items()}
            precision = {name: self._precision_of(name, added[name]) + added[name] for name in names}  # Eq. (9)
            prior = self._prior_at(memories, precision, ranks)
            with ranks.agreement():
                found = {"precision": precision, "tasks": [anchor.state_dict() for anchor in prior.anchors]}
                check_finite(found, f"the end of task {len(memories) - 1}")
        except BaseException:
            self._generator.set_state(draws)
            raise
        self.precision, self._made_by = precision, made_by
        self._set_prior(prior)
        self._fixed_here()

    @on_whole_weights
    def predict(self, x: Inputs, head: Sequence[int] | None = None, **keywords: Constant) -> gp.Prediction:
        """The GP predictive at x: mean and variance of y, observation term included, both (b, c).

        It is that of the network made linear at its weights. The variance is not bounded as that of a label is, and it
        is large wherever no data has touched the weights that matter there: it ranks inputs, and is not a probability.
        keywords: further arguments of the model's forward, such as task="b".
        """
        self._check_place()
        x = self._prepared(x, checked_keywords(self._network, "predict", keywords))
        names = tuple(self.precision) or trainable(self._network)
        return gp.predict(self._network, x, self.likelihood, self.variance(names), as_head(head), self.memory_budget)

    def uncertainty(
        self, head: Sequence[int] | None = None, weight_precision: float = 1.0, **keywords: Constant
    ) -> Uncertainty:
        """What the memory says of a head's outputs at any input, at the model's present weights.

            known = reg.uncertainty()
            known.novelty(x)          # 0 to 1: is x unlike what was learned?
            known.calibrated(x_held_out, y_held_out).interval(x, 0.9)    # in regression: where the label lies

        weight_precision: of the weights around their present values, before the memory: 1 unless you know better.
        Unlike `predict`, it does not use the precision, which holds no correlation between weights.
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
            self.memory_budget,
        )

    def variance(self, names: Sequence[str]) -> Weights:
        """The diagonal of Sigma for these weights: from the past tasks, or the prior for a weight new to them."""
        weights = detached(self._network, tuple(names))
        return {name: 1 / self._precision_of(name, weight) for name, weight in weights.items()}

    @on_whole_weights
    def forget(self, task: int, examples: Sequence[int] | Tensor | None = None) -> None:
        """Drop a past task, counted from 0, or the examples at some places of its memory, as when they must be deleted.

        What is computed from an example goes with it: the means and kernels are then those of a regulariser that has
        never kept it. If nothing of a task is left, the task is gone, and those after it move up by one. What the task
        has added to the precision stays: that is one number per weight, summed over all examples of all tasks.
        """
        anchors, place = self._anchors(), operator.index(task)
        if self._prior is None or not 0 <= place < len(anchors):
            raise FrompError(f"no task {task} to forget: {len(anchors)} are remembered, counted from 0.")
        left = ownership.staying(place, len(anchors[place].memory), examples) if examples is not None else NO_TASKS
        anchors[place : place + 1] = [anchors[place].take(left)] if len(left) else []
        turns = self._turns if len(left) else NO_TASKS  # while the tasks are the same, so are their turns
        self._set_prior(self._prior_of(anchors), turns)

    @on_whole_weights
    def merge(self, other: "FROMP", start: "FROMP | None" = None) -> None:
        """Take over what another site has learned since both went on from `start`, without its data.

            reg.merge(FROMP.load("theirs", model), start=FROMP.load("january", model))

        The memories are the union, where those of the start come once and without what either site has forgotten; the
        precision is p_a + p_b - p_0. The prior is taken anew at the model's present weights: give it an average of both
        sites' weights, or those of one of them, before. start: None if both began with nothing.
        """
        if start is None:
            start = FROMP(self.model, self.likelihood, prior_precision=self.prior_precision, output=self._output)
        ours, theirs, before = (self._adopted(site) for site in (self, other, start))
        memories = ownership.union(before, ours, theirs)
        names = dict.fromkeys([*self.precision, *other.precision])
        weights = {name: weight for name, weight in named_weights(self._network).items() if name in names}
        p, q, p0 = (
            {name: site._precision_of(name, weight).to(wide_weight(weight)) for name, weight in weights.items()}
            for site in (self, other, start)
        )
        precision = ownership.joined(p0, p, q)
        prior = self._prior_at(memories, precision, self.ranks) if memories else None
        self.precision = precision
        self._set_prior(prior)
        self._fixed_here()

    def inspect(self) -> Inspection:
        """One row per task: points, classes, head, scores, drift and bytes; `print` it, or read its `rows`."""
        held = sum(value.nbytes for value in self.precision.values())
        return inspect(self._anchors(), self.drift(), self.likelihood, held)

    @on_whole_weights
    def drift(self) -> list[float]:
        """How far the means have moved at each past task's memory since they were fixed: root mean square."""
        self._check_place()
        self._grow()
        anchors = self._anchors()
        now = means(self._network, self.likelihood, anchors)
        return [float((m - anchor.mean).square().mean().sqrt()) for m, anchor in zip(now, anchors, strict=True)]

    def _lost(self) -> list[int]:
        """The past tasks at whose memory the model's outputs are not finite."""
        return [task for task, moved in enumerate(self.drift()) if not math.isfinite(moved)]

    def to(self, *where: torch.device | str | int | torch.dtype) -> "FROMP":
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
        anchors = [anchor.to(device, then, now) for anchor in self._anchors()]
        self.precision = {
            name: value.to(device, wide(now) if value.dtype == wide(then) else value.dtype)
            for name, value in self.precision.items()
        }
        if self._prior is not None:
            self._prior = FunctionalPrior(anchors, self.likelihood, self._prior.chunk_size)
        self._place = device, now
        return self

    def save(self, path: str | os.PathLike) -> None:
        """Write everything but the model's weights into a folder, atomically; of several ranks the first one writes."""
        state = self.state_dict()  # on every rank, because split weights are gathered for it
        if self.ranks.rank == 0:
            storage.write(path, formats.KIND, state)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        model: nn.Module,
        likelihood: Likelihood | None = None,
        kernel: type[Kernel] | None = None,
        score: Score | None = None,
        select: Select | None = None,
        output: Output | None = None,
        keep: Transform | None = None,
        curvature: Curvature | None = None,
        prefix: str = "",
    ) -> "FROMP":
        """What `save` wrote, for the same model. What you wrote yourself, such as a likelihood, is given again.

        prefix: by which the names of the model's parameters are longer, or shorter, than those that were saved: "net."
        where the model has become the `net` of another module.
        """
        state = formats.read(path)
        trainable(model)
        options = saved_options(state, kernel, score, select, output)
        try:
            likelihood = likelihood or built(LIKELIHOODS, field(state, "likelihood", dict), "likelihood")
            curvature = curvature or built(CURVATURES, field(state, "curvature", dict), "curvature")
            reg = cls(model, likelihood, output=output, keep=keep, curvature=curvature, **options)
        except CheckpointError:
            raise
        except (FrompError, TypeError) as error:
            raise CheckpointError(f"the saved settings are wrong: {error} Restore the folder from a copy.") from error
        reg.load_state_dict(state, prefix)
        return reg

    def state_dict(self) -> State:
        """Memory, precision, prior and draws; the model's weights are not part of it."""
        settings = {name: getattr(self, name) for name in SETTINGS}
        settings |= {
            "kernel": name_of(KERNELS, self.kernel),
            "score": name_of(SCORES, self.score),
            "select": name_of(SELECTIONS, self.select),
            "output": None if self._output is None else name_of({}, self._output),
        }
        return {
            "settings": settings,
            "likelihood": description(LIKELIHOODS, self.likelihood),
            "curvature": description(CURVATURES, self.curvature),
            "weights": {name: list(value.shape) for name, value in self.precision.items()},
            "fingerprint": fingerprint(self._network, self.precision),
            "fixed": self._watch.fixed,
            "dtype": str(self._place[1]).removeprefix("torch."),
            "precision": dict(self.precision),
            "tasks": [anchor.state_dict() for anchor in self._anchors()],
            "generator": self._generator.get_state(),
            "turns": self._turns,
            "keep": self._made_by,
        }

    @on_whole_weights
    def load_state_dict(self, state: State, prefix: str = "") -> None:
        """Return to a state that `state_dict` gave, if the model is still the one it was taken from.

        Everything is checked before anything is changed. The settings stay those of this regulariser. prefix: by which
        the names of the model's parameters are longer, or shorter, than those of the state.
        """
        mine = named_weights(self._network)
        state = renamed(formats.completed(state), ("weights", "precision", "fingerprint", "fixed"), prefix, mine)
        place = self._place_of_model()
        found = restored(state, self._network, self.likelihood, self.kernel, self._keep, place)
        self._set_prior(self._prior_of(found.anchors), found.turns)
        self.precision, self._generator, self._made_by = found.precision, found.generator, found.made_by
        self._watch = WeightWatch(self._network, found.fingerprint, found.fixed, found.precision)
        self._attributes, self._place = Attributes(), place

    def _prepared(self, x: Inputs, keywords: Mapping[str, Constant]) -> Inputs:
        """Inputs as the model takes them."""
        x = self._keep(as_tensors(x, dtype_of(self._network)), device_of(self._network))
        x = with_keywords(self._network, x, keywords)
        inputs.check_finite(x)
        return inputs.move(x, device_of(self._network))

    def _room_for(self, examples: int) -> tuple[list[Memory], int, Select]:
        """What stays of the past when a task of that many examples has ended, its own points, and who selects them."""
        if self.total_memory is None:
            return list(self.memories), self.memory_size, self.select
        select = ownership.budgeted(self.select, self.total_memory)
        return *ownership.within(self.total_memory, self.memories, examples, self.likelihood, select), select

    def _draw(self, past: int, count: int) -> Tensor:
        """The tasks whose turn it is: in a random order each comes once, then in another, never twice at a time.

        Each is as likely as any other at every step, and a few steps in a row see nearly the whole past: momentum
        averages over them, and is left with less noise than after independent draws.
        """
        if len(self._turns) < count:
            order = torch.randperm(past, generator=self._generator)
            waiting = torch.isin(order, self._turns)
            self._turns = torch.cat([self._turns, order[~waiting], order[waiting]])
        drawn, self._turns = self._turns[:count], self._turns[count:].clone()
        return drawn

    def _anchors(self) -> list[Anchor]:
        """What holds the network, one for each task."""
        return list(self._prior.anchors) if self._prior else []

    def _set_prior(self, prior: FunctionalPrior | None, turns: Tensor = NO_TASKS) -> None:
        """Be held by this prior alone: `memories` are those in it, which share nothing with any before."""
        self._prior, self._turns = prior, turns
        self._runaway = RunawayWatch(prior.uninformed_nll if prior else lambda: 0.0, self._lost)

    def _fixed_here(self) -> None:
        """Note that the means have been fixed at the present weights."""
        self._watch = WeightWatch(self._network, fixed=fingerprint(self._network), known=self.precision)
        self._attributes, self._place = attributes(self._network), self._place_of_model()

    def _place_of_model(self) -> Place:
        return device_of(self._network), dtype_of(self._network)

    def _check_place(self) -> None:
        """An error if the model has been moved, or its type changed, since the memory was computed."""
        if self._prior is not None and (now := self._place_of_model()) != self._place:
            raise DataError(
                f"the model is {now[1]} on {now[0]}, what is kept of the past {self._place[1]} on {self._place[0]}; "
                f"bring it there: reg.to('{now[0]}', {now[1]})."
            )

    def _look(self) -> None:
        """What is checked once, at the first penalty: the weights it is computed at, and that nothing else matters."""
        if self._watch.fresh:
            self._grow()
        if self._watch.look():
            check_unmoved(self._network, self.likelihood, self._anchors(), self._attributes)

    def _grow(self) -> bool:
        """Take layers with more rows than they had as grown, if there are any: the past stays on the outputs it had."""
        weights = named_weights(self._network)
        if not (grown := growth.grown(self.precision, weights)):
            return False
        self._watch.check_rows(grown)
        self._prior = self._prior_of([growth.on_its_outputs(anchor, self._network) for anchor in self._anchors()])
        self.precision = {name: self._precision_of(name, weights[name]) for name in self.precision}
        return True

    def _prior_of(self, anchors: list[Anchor]) -> FunctionalPrior | None:
        if not anchors:
            return None
        points = self._points_per_pass([anchor.memory for anchor in anchors])
        return FunctionalPrior(anchors, self.likelihood, points)

    def _precision_of(self, name: str, like: Tensor) -> Tensor:
        known = self.precision.get(name)
        if known is not None:
            return growth.extended(known, like, self.prior_precision)
        return torch.full_like(wide_weight(like), self.prior_precision, requires_grad=False)

    def _prior_at(self, memories: list[Memory], precision: dict[str, Tensor], ranks: Ranks) -> FunctionalPrior:
        return FunctionalPrior.at(
            self._network,
            memories,
            self.likelihood,
            {name: 1 / value for name, value in precision.items()},
            self.kernel,
            self.jitter,
            self._points_per_pass(memories),
            self.memory_budget,
            ranks,
        )

    def _points_per_pass(self, memories: Sequence[Memory]) -> int:
        return points_per_pass(self._network, [(memory.inputs, memory.head) for memory in memories])

    def _adopted(self, site: "FROMP") -> list[Memory]:
        """What another regulariser has kept, where and as this one's model takes it."""
        if site.prior_precision != self.prior_precision:
            raise FrompError(
                f"prior_precision is {self.prior_precision:g} here and {site.prior_precision:g} there; sites can be "
                "merged only if both began with the same."
            )
        kinds = [(type(one.likelihood), one.likelihood.settings()) for one in (self, site)]
        if kinds[0] != kinds[1]:
            raise FrompError(f"the likelihoods are {kinds[0]} and {kinds[1]}; sites can be merged only with the same.")
        if site._made_by is not None:
            self._keep.check(site._made_by)
        check_shapes(self._network, {name: list(value.shape) for name, value in site.precision.items()})
        (device, now), (_, then) = self._place_of_model(), site._place
        found, grown = [], growth.grown(site.precision, named_weights(self._network))
        for anchor in site._anchors():
            anchor = anchor.to(device, then, now)
            if grown:
                anchor = growth.on_its_outputs(anchor, self._network)
            check_anchor(self._network, self.likelihood, anchor)
            found.append(anchor.memory)
        return found
