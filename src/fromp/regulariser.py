"""FROMP, functional regularisation of memorable past: Algorithm 1, as a penalty for any training loop."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from fromp import formats, gp, growth
from fromp.constancy import Attributes
from fromp.curvature import Curvature
from fromp.derivatives.budget import points_per_pass
from fromp.derivatives.keywords import checked_keywords
from fromp.derivatives.model import (
    Output,
    Weights,
    as_head,
    detached,
    named_weights,
    trainable,
)
from fromp.derivatives.runaway import RunawayWatch
from fromp.derivatives.sharded import on_whole_weights
from fromp.derivatives.watch import WeightWatch, check_alike, fingerprint
from fromp.foundation import inputs, storage
from fromp.foundation.arrays import Numbers
from fromp.foundation.checked import Setting, count_or_none, number, number_or_none, positive
from fromp.foundation.collectives import ALONE, Ranks
from fromp.foundation.errors import CheckpointError, FrompError, warn
from fromp.foundation.examples import TaskData
from fromp.foundation.inputs import Constant, Inputs
from fromp.foundation.shards import Shards
from fromp.foundation.state import State, check_finite, field, renamed
from fromp.keeping import Transform
from fromp.likelihoods import Likelihood
from fromp.memory import (
    Held,
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
from fromp.naming import (
    CURVATURES,
    KERNELS,
    LIKELIHOODS,
    REFRESHES,
    SCORES,
    SELECTIONS,
    built,
    description,
    name_of,
    named,
)
from fromp.prior import Anchor, FunctionalPrior, OutputsChanged
from fromp.protocol import no_penalty
from fromp.refresh import Refresh, at_every_end
from fromp.remembering import NOTHING, Remembering
from fromp.restoring import SETTINGS, restored, saved_options
from fromp.room import Part, Room, Shape, free_bytes, out_of_memory_is_ours

NO_KERNELS: Mapping[int, Kernel] = {}
WAY_OUT = (
    "Leave `jitter` at its default, which bounds the penalty, lower `tau` or the learning rate, or clip the gradient."
)


@final
class FROMP(Remembering):
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
    kernel: `FullKernel`, `HalfKernel` for about the same in half the memory, or `IdentityKernel` for the L2 variants.
    curvature: `ExactGGN()`, or `SignGGN()`, which takes one backward pass per example however many classes there are.
    refresh: which kernels of past tasks a task's end computes anew: all of them unless it is `when_doubled` or `never`,
        with which the cost of `end_task` hardly grows with the number of tasks.
    sketch: where the derivatives at a task's memory do not fit into `memory_budget`, kernels from so many random
        combinations of the weights, such as 4000, with one pass over the memory; by default they are exact.
    score, select: which examples are kept; `random_score` makes it FRORP, `top` ignores the classes.
    tasks_per_step: draw this many past tasks for each penalty, in turns, and scale it up, so that a step's cost stays
        the same however many tasks there are; over a round of turns it is the full one, and its noise costs accuracy.
    seed: of the draws that `random_score`, `tasks_per_step` and `SignGGN` make. The global random state is never
        touched.
    memory_budget: bytes that the once-per-task work may hold, the kernels and the numbers per weight included; by
        default what is free on the device, and 512 MB for a chunk of it. Too little is an error before any work.
    output: picks the outputs f, (b, c), out of what the model returns. It is needed only where they are neither that
        itself, nor its `logits`, nor the first of a tuple.
    keep: a frozen module or a function, such as the trunk of a network whose head is `model`: what it makes of an input
        is kept in the input's place, and given to the model. `end_task` and `predict` take the inputs themselves.
    ranks: the processes that learn each task together; those of a DistributedDataParallel model, or of the default
        process group if there is one, unless given. Each calls `end_task` with its own part of the task.
    """

    tau = Setting(number)
    prior_precision = Setting(positive)
    jitter = Setting(number_or_none)
    tasks_per_step = Setting(count_or_none)
    sketch = Setting(count_or_none)

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
        memory_budget: int | None = None,
        output: Output | None = None,
        ranks: Ranks | None = None,
        total_memory: int | None = None,
        keep: Transform | None = None,
        curvature: Curvature = gp.EXACT,
        refresh: Refresh = at_every_end,
        sketch: int | None = None,
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
            memory_budget=memory_budget,
        )
        self.tau, self.prior_precision, self.jitter, self.kernel = tau, prior_precision, jitter, kernel
        self.tasks_per_step, self.curvature = tasks_per_step, curvature
        self.refresh, self.sketch = refresh, sketch
        self._prior: FunctionalPrior | None = None
        self._turns = NOTHING  # past tasks in the order in which they are drawn next

    @property
    def memories(self) -> tuple[Memory, ...]:
        return tuple(anchor.memory for anchor in self._anchors())

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

    @out_of_memory_is_ours
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
            examples, head, made_by = self._arranged(data, labels_or_head, head, keywords)
        draws = self._generator.get_state()
        try:
            check_alike(self._network, head, ranks)
            task = Shards(examples, ranks)
            past, size, select = self._room_for(len(task))
            with ranks.agreement():
                few, _ = examples.take(torch.arange(min(2, len(examples))))
                known = [len(anchor.mean) for anchor in self._anchors()]
                stay = [(c, len(memory)) for c, memory in zip(known, past, strict=True)]
                chunk = self._chunk([(few, head, min(size, len(task)))], stay)
            weigh = partial(assess, self._network, examples, self.likelihood, self._generator, head, self.score)
            computed, classes = ranks.in_turn(partial(weigh, chunk), self._generator)
            with ranks.agreement():
                scores = computed if scores is None else torch.as_tensor(scores).to(computed.device)
                check_scores(scores, len(examples))
            scores, classes = task.of_all(scores), task.of_all(classes)
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
            ggn = partial(gp.ggn_diagonal, self._network, names, examples, self.likelihood, head, chunk)
            with ranks.agreement():
                share = ggn(self.curvature, seed + ranks.rank)
            added = {name: ranks.total(diagonal) for name, diagonal in share.items()}
            precision = {name: self._known(name, g, self.precision) + g for name, g in added.items()}  # Eq. (9)
            prior = self._prior_at(memories, precision, ranks, self._kernels_kept(memories), chunk)
            with ranks.agreement():
                found = {"precision": precision, "tasks": [anchor.state_dict() for anchor in prior.anchors]}
                check_finite(found, f"the end of task {len(memories) - 1}")
        except BaseException:
            self._generator.set_state(draws)
            raise
        self.precision, self._made_by = precision, made_by
        self._set_prior(prior)
        self._fixed_here()

    @out_of_memory_is_ours
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
        return gp.predict(self._network, x, self.likelihood, self.variance(names), as_head(head), self._budget)

    def variance(self, names: Sequence[str]) -> Weights:
        """The diagonal of Sigma for these weights: from the past tasks, or the prior for a weight new to them."""
        weights = detached(self._network, tuple(names))
        return {name: 1 / self._known(name, weight, self.precision) for name, weight in weights.items()}

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
        refresh: Refresh | None = None,
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
            refresh = refresh or named(REFRESHES, field(state, "refresh", str), "refresh")
            reg = cls(model, likelihood, output=output, keep=keep, curvature=curvature, refresh=refresh, **options)
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
            "refresh": name_of(REFRESHES, self.refresh),
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

    def _draw(self, past: int, count: int) -> Tensor:
        """The tasks whose turn it is: in a random order each comes once, then in another, never twice at a time.

        Each is as likely as any other at every step, and a few steps in a row see nearly the whole past: momentum
        averages over them, and is left with less noise than after independent draws. A value alone, which one of
        several ranks may ask for, leaves the turns as they are.
        """
        before = None if torch.is_grad_enabled() else (self._generator.get_state(), self._turns)
        if len(self._turns) < count:
            order = torch.randperm(past, generator=self._generator)
            waiting = torch.isin(order, self._turns)
            self._turns = torch.cat([self._turns, order[~waiting], order[waiting]])
        drawn, self._turns = self._turns[:count], self._turns[count:].clone()
        if before is not None:
            self._turns = before[1]
            self._generator.set_state(before[0])
        return drawn

    def _anchors(self) -> list[Anchor]:
        """What holds the network, one for each task."""
        return list(self._prior.anchors) if self._prior else []

    def _set_prior(self, prior: FunctionalPrior | None, turns: Tensor = NOTHING) -> None:
        """Be held by this prior alone: `memories` are those in it, which share nothing with any before."""
        self._prior, self._turns = prior, turns
        self._runaway = RunawayWatch(self._uninformed_nll, self._lost, WAY_OUT)

    @property
    def _prior_precision(self) -> float:
        return self.prior_precision

    def _in_words(self) -> str:
        return f"tau={self.tau:g}, "

    def _held(self) -> Sequence[Held]:
        return self._anchors()

    def _kept_of_tasks(self) -> Sequence[State]:
        return [anchor.state_dict() for anchor in self._anchors()]

    def _leave(self, place: int, left: Tensor) -> None:
        anchors = self._anchors()
        anchors[place : place + 1] = [anchors[place].take(left)] if len(left) else []
        turns = self._turns if len(left) else NOTHING  # while the tasks are the same, so are their turns
        self._set_prior(self._prior_of(anchors), turns)

    def _hold_anew(self, memories: Sequence[Memory], precision: dict[str, Tensor]) -> None:
        parts = [(inputs.take(memory.inputs, slice(0, 2)), memory.head, len(memory)) for memory in memories]
        prior = self._prior_at(memories, precision, self.ranks, chunk=self._chunk(parts)) if memories else None
        self.precision = precision
        self._set_prior(prior)

    def _move(self, device: torch.device, then: torch.dtype, now: torch.dtype) -> None:
        if self._prior is not None:
            anchors = [anchor.to(device, then, now) for anchor in self._anchors()]
            self._prior = FunctionalPrior(anchors, self.likelihood, self._prior.chunk_size)

    def _grow(self) -> bool:
        weights = named_weights(self._network)
        if not (grown := growth.grown(self.precision, weights)):
            return False
        self._watch.check_rows(grown)
        memories = [growth.on_its_outputs(a.memory, len(a.mean), self._network) for a in self._anchors()]
        self._prior = self._prior_of(
            [replace(anchor, memory=memory) for anchor, memory in zip(self._anchors(), memories, strict=True)]
        )
        self.precision = {name: self._known(name, weights[name], self.precision) for name in self.precision}
        return True

    def _prior_of(self, anchors: list[Anchor]) -> FunctionalPrior | None:
        if not anchors:
            return None
        points = self._points_per_pass([anchor.memory for anchor in anchors])
        return FunctionalPrior(anchors, self.likelihood, points)

    def _kernels_kept(self, memories: Sequence[Memory]) -> dict[int, Kernel]:
        """The kernels that a task's end leaves as they are, by place; those of memories that have shrunk are not."""
        return {
            place: anchor.kernel
            for place, anchor in enumerate(self._anchors())
            if memories[place] is anchor.memory and not self.refresh(place + 1, len(memories))
        }

    def _chunk(self, parts: Sequence[Part], stay: Sequence[Shape] = ()) -> int:
        """The bytes of a chunk where the prior is taken for these tasks and for those of known shapes that stay."""
        past = [(len(anchor.mean), len(anchor.memory)) for anchor in self._anchors()]
        room = Room.of(self._network, parts, self.kernel, past, stay)
        return room.chunk(self.memory_budget, free_bytes(self._place_of_model()[0]))

    def _prior_at(
        self,
        memories: Sequence[Memory],
        precision: dict[str, Tensor],
        ranks: Ranks,
        kept: Mapping[int, Kernel] = NO_KERNELS,
        chunk: int | None = None,
    ) -> FunctionalPrior:
        return FunctionalPrior.at(
            self._network,
            memories,
            self.likelihood,
            {name: 1 / value for name, value in precision.items()},
            self.kernel,
            self.jitter,
            self._points_per_pass(memories),
            chunk or self._budget,
            ranks,
            kept,
            self.sketch,
        )

    def _points_per_pass(self, memories: Sequence[Memory]) -> int:
        return points_per_pass(self._network, [(memory.inputs, memory.head) for memory in memories])
