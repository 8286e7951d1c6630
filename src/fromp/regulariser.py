"""FROMP, functional regularisation of memorable past: Algorithm 1, as a penalty for any training loop."""

import math
import operator
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import torch
from torch import Tensor, nn

from fromp import gp
from fromp.derivatives.budget import MEMORY_BUDGET, points_per_pass
from fromp.derivatives.model import Weights, as_head, check_head, detached, device_of, evaluating, outputs, trainable
from fromp.derivatives.watch import WeightWatch, fingerprint
from fromp.foundation import inputs, storage
from fromp.foundation.checked import Setting, count, count_or_none, number, positive
from fromp.foundation.errors import CheckpointError, DataError, FrompError, FrompWarning
from fromp.foundation.examples import as_examples
from fromp.foundation.inputs import Inputs
from fromp.foundation.state import State, field, flatten, set_generator, tensor, weights
from fromp.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson
from fromp.memory import (
    Memory,
    Score,
    Select,
    assess,
    least_memorable,
    memorability,
    per_class,
    random_score,
    remember,
    top,
)
from fromp.prior import Anchor, FullKernel, FunctionalPrior, IdentityKernel, Kernel

NO_TASKS = torch.empty(0, dtype=torch.long)

SETTINGS = ("tau", "memory_size", "prior_precision", "jitter", "tasks_per_step", "memory_budget")
LIKELIHOODS: dict[str, type[Likelihood]] = {c.__name__: c for c in (Categorical, Bernoulli, Gaussian, Poisson)}
KERNELS: dict[str, type[Kernel]] = {c.__name__: c for c in (FullKernel, IdentityKernel)}
SCORES: dict[str, Score] = {f.__name__: f for f in (memorability, least_memorable, random_score)}
SELECTIONS: dict[str, Select] = {f.__name__: f for f in (per_class, top)}


class Loss(NamedTuple):
    """The two terms whose sum a step descends, both scalars."""

    data: Tensor
    penalty: Tensor

    def descend(self, optimizer: torch.optim.Optimizer, clip: float | None = None) -> float:
        """One step down the sum; the norm of its gradient if that is clipped, else infinity."""
        optimizer.zero_grad()
        (self.data + self.penalty).backward()
        norm = math.inf
        if clip is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            norm = float(nn.utils.clip_grad_norm_(parameters, clip))
        optimizer.step()
        return norm

    def detach(self) -> "Loss":
        """Its values alone."""
        return Loss(self.data.detach(), self.penalty.detach())


@runtime_checkable
class Regulariser(Protocol):
    """A method that holds past tasks by a penalty: all that `TaskFree` and other training loops need."""

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""

    @property
    def likelihood(self) -> Likelihood:
        """What its outputs mean."""

    def penalty(self) -> Tensor:
        """What is added to the mean nll: a scalar, zero before the first task has ended."""

    def end_task(self, data: Any, head: Sequence[int] | None = None) -> None:
        """Keep what is needed of this task; its data can be deleted afterwards."""

    def state_dict(self) -> State:
        """Everything kept of the past, as nested dicts and lists of tensors and JSON values."""

    def load_state_dict(self, state: State) -> None:
        """Return to a state that `state_dict` gave, on the model's device."""


def no_penalty(model: nn.Module) -> Tensor:
    """Zero, on the model's device, that can be descended: the penalty before any task has ended."""
    return torch.zeros((), device=device_of(model), requires_grad=True)


@final
class FROMP:
    """Holds a network's outputs in place at the most memorable examples of its past tasks.

        reg = FROMP(model, Categorical(), tau=0.5, memory_size=200)
        loss = cross_entropy(model(x), y) + reg.penalty()  # in the training loop
        reg.end_task((x, y))                               # after each task

    tau: strength of the penalty in units of N, so that `mean nll + penalty` is Eq. (8) divided by N.
    memory_size: examples kept of each task, shared evenly between its classes.
    prior_precision: delta, the precision of the weights before any data.
    jitter: added to the kernel's diagonal.
    kernel: `FullKernel`, or `IdentityKernel` for the L2 variants.
    score, select: which examples are kept; `random_score` makes it FRORP, `top` ignores the classes.
    tasks_per_step: draw this many past tasks for each penalty, in turns, and scale it up, so that a step's cost stays
        the same however many tasks there are; over a round of turns it is the full one, and its noise costs accuracy.
    seed: of the draws that `random_score` and `tasks_per_step` make. The global random state is never touched.
    memory_budget: bytes that a chunk of the once-per-task work may hold.
    """

    tau = Setting(number)
    memory_size = Setting(count)
    prior_precision = Setting(positive)
    jitter = Setting(number)
    tasks_per_step = Setting(count_or_none)
    memory_budget = Setting(count)

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        tau: float = 0.5,
        memory_size: int = 200,
        prior_precision: float = 1e-5,
        jitter: float = 1e-5,
        *,
        kernel: type[Kernel] = FullKernel,
        score: Score = memorability,
        select: Select = per_class,
        tasks_per_step: int | None = None,
        seed: int = 0,
        memory_budget: int = MEMORY_BUDGET,
    ) -> None:
        trainable(model)
        if not isinstance(likelihood, Likelihood):
            raise FrompError(f"likelihood={likelihood} is not a likelihood; give one, such as Categorical().")
        self._model, self._likelihood = model, likelihood
        self.tau, self.memory_size, self.prior_precision, self.jitter = tau, memory_size, prior_precision, jitter
        self.kernel, self.score, self.select, self.tasks_per_step = kernel, score, select, tasks_per_step
        self.memory_budget = memory_budget
        self.precision: dict[str, Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)
        self._set_prior(None)

    @property
    def model(self) -> nn.Module:
        """The model that is held; make another regulariser, or load a state, to hold another one."""
        return self._model

    @property
    def likelihood(self) -> Likelihood:
        """What the model's outputs mean."""
        return self._likelihood

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
        """tau / 2 sum_s (m_s - m0_s)' K_s^-1 (m_s - m0_s), Eq. (8) divided by N: a scalar; zero before any task."""
        if self._prior is None:
            return no_penalty(self.model)
        self._watch.look()
        past = len(self._prior.anchors)
        if self.tasks_per_step is None or self.tasks_per_step >= past:
            return 0.5 * self.tau * self._prior.squared_distance(self.model)
        scale = past / self.tasks_per_step
        return 0.5 * self.tau * scale * self._prior.squared_distance(self.model, self._draw(past, self.tasks_per_step))

    def end_task(self, data: Any, head: Sequence[int] | None = None, scores: Tensor | None = None) -> None:
        """Remember a task: its memorable examples, its share of the precision, and the prior at today's weights.

        data: (x, y) tensors, a Dataset or a DataLoader. head: the task's output indices, in which its labels
        count. scores: one number for each example, to be used instead of `score`. If anything is wrong with
        them there is an error, and nothing has changed.
        """
        examples, head = as_examples(data), as_head(head)
        draws = self._generator.get_state()
        try:
            computed, classes = assess(
                self.model, examples, self.likelihood, self._generator, head, self.score, self.memory_budget
            )
            scores = computed if scores is None else torch.as_tensor(scores).to(computed.device)
            memory = remember(examples, scores, classes, self.memory_size, head, self.select)
            if self.score is memorability and not bool(scores.any()):
                warnings.warn(
                    f"the model is certain of all {len(examples)} examples (every score is 0): nothing tells which are "
                    "memorable, and where the outputs are saturated the penalty has no gradient; train with less "
                    "confidence (fewer steps, weight decay, label smoothing).",
                    FrompWarning,
                    stacklevel=2,
                )
            memories = [*(anchor.memory for anchor in self._anchors()), memory]
            self._check_shapes({name: list(value.shape) for name, value in self.precision.items()})
            names = tuple(dict.fromkeys([*self.precision, *trainable(self.model)]))
            task = gp.ggn_diagonal(self.model, names, examples, self.likelihood, head, self.memory_budget)
            precision = {name: self._precision_of(name, task[name]) + task[name] for name in names}  # Eq. (9)
            prior = self._prior_at(memories, precision)
        except BaseException:
            self._generator.set_state(draws)
            raise
        self.precision = precision
        self._set_prior(prior)

    def predict(self, x: Inputs, head: Sequence[int] | None = None) -> gp.Prediction:
        """The GP predictive at x: mean and variance of y, observation term included, both (b, c).

        It is that of the network made linear at its weights. The variance is not bounded as that of a label is, and it
        is large wherever no data has touched the weights that matter there: it ranks inputs, and is not a probability.
        """
        inputs.check_finite(x)
        names = tuple(self.precision) or trainable(self.model)
        x = inputs.move(x, device_of(self.model))
        return gp.predict(self.model, x, self.likelihood, self.variance(names), as_head(head), self.memory_budget)

    def variance(self, names: Sequence[str]) -> Weights:
        """The diagonal of Sigma for these weights: from the past tasks, or the prior for a weight new to them."""
        weights = detached(self.model, tuple(names))
        return {name: 1 / self._precision_of(name, weight) for name, weight in weights.items()}

    def forget(self, task: int) -> None:
        """Drop the memory of a past task, counted from 0, as when its examples must be deleted.

        Nothing holds the network there any more, and the tasks after it move up by one. What the task has added to the
        precision stays: that is one number per weight, summed over all tasks.
        """
        anchors, place = self._anchors(), operator.index(task)
        if self._prior is None or not 0 <= place < len(anchors):
            raise FrompError(f"no task {task} to forget: {len(anchors)} are remembered, counted from 0.")
        del anchors[place]
        self._set_prior(self._prior_of(anchors, self._prior.num_outputs))

    def drift(self) -> list[float]:
        """How far the means have moved at each past task's memory since they were fixed: root mean square."""
        if self._prior is None:
            return []
        with evaluating(self.model), torch.no_grad():
            return [
                float(
                    (gp.mean(self.model, a.memory.inputs, self.likelihood, a.memory.head).T - a.mean)
                    .square()
                    .mean()
                    .sqrt()
                )
                for a in self._prior.anchors
            ]

    def save(self, path: str | os.PathLike) -> None:
        """Write everything but the model's weights into a folder, atomically."""
        storage.write(path, "fromp", self.state_dict())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        model: nn.Module,
        likelihood: Likelihood | None = None,
        kernel: type[Kernel] | None = None,
        score: Score | None = None,
        select: Select | None = None,
    ) -> "FROMP":
        """What `save` wrote, for the same model. What you wrote yourself, such as a likelihood, is given again."""
        state = storage.read(path, "fromp")
        trainable(model)
        settings, named = field(state, "settings", dict), field(state, "likelihood", dict)
        options = {name: settings.get(name) for name in SETTINGS}
        kinds: dict[str, tuple[Mapping[str, Any], Any]] = {
            "kernel": (KERNELS, kernel), "score": (SCORES, score), "select": (SELECTIONS, select)
        }  # fmt: skip
        options |= {
            role: own if own is not None else _named(known, field(settings, role, str), role)
            for role, (known, own) in kinds.items()
        }
        try:
            if likelihood is None:
                kind = _named(LIKELIHOODS, field(named, "name", str), "likelihood")
                likelihood = kind(**field(named, "settings", dict))
            reg = cls(model, likelihood, **options)
        except CheckpointError:
            raise
        except (FrompError, TypeError) as error:
            raise CheckpointError(f"the saved settings are wrong: {error} Restore the folder from a copy.") from error
        reg.load_state_dict(state)
        return reg

    def state_dict(self) -> State:
        """Memory, precision, prior and draws; the model's weights are not part of it."""
        settings = {name: getattr(self, name) for name in SETTINGS}
        settings |= {
            "kernel": _name_of(KERNELS, self.kernel),
            "score": _name_of(SCORES, self.score),
            "select": _name_of(SELECTIONS, self.select),
        }
        likelihood = _name_of(LIKELIHOODS, type(self.likelihood))
        return {
            "settings": settings,
            "likelihood": {"name": likelihood, "settings": self.likelihood.settings()},
            "weights": {name: list(value.shape) for name, value in self.precision.items()},
            "fingerprint": fingerprint(self.model),
            "dtype": str(next(self.model.parameters()).dtype).removeprefix("torch."),
            "outputs": self._prior.num_outputs if self._prior else None,
            "precision": dict(self.precision),
            "tasks": [anchor.state_dict() for anchor in self._anchors()],
            "generator": self._generator.get_state(),
            "turns": self._turns,
        }

    def load_state_dict(self, state: State) -> None:
        """Return to a state that `state_dict` gave, if the model is still the one it was taken from.

        Everything is checked before anything is changed. The settings stay those of this regulariser.
        """
        self._check_shapes(field(state, "weights", dict))
        parameters = {name: _wide(w) for name, w in self.model.named_parameters()}
        precision = weights(state, "precision", parameters)
        if wrong := [name for name, value in precision.items() if not bool((value > 0).all())]:
            raise CheckpointError(f"the saved precision of '{wrong[0]}' is not positive; restore it from a copy.")
        device, num_outputs = device_of(self.model), field(state, "outputs", int, type(None))
        try:
            cast = self._cast(field(state, "dtype", str))
            anchors = [cast(Anchor.from_state(task, self.kernel, device)) for task in field(state, "tasks", list)]
            for anchor in anchors:
                self._check_anchor(anchor, num_outputs)
        except DataError as error:
            raise CheckpointError(f"a saved memory does not fit the model: {error}") from error
        turns = tensor(state, "turns", -1, floating=False).cpu()
        if len(turns) != len(turns.unique()) or bool(((turns < 0) | (turns >= len(anchors))).any()):
            raise CheckpointError(f"the saved 'turns' do not name {len(anchors)} tasks; restore it from a copy.")
        generator = torch.Generator()
        set_generator(generator, state, "generator")
        saved = _fingerprint(field(state, "fingerprint", dict))
        self._set_prior(self._prior_of(anchors, num_outputs or 0))
        self.precision, self._turns, self._generator = precision, turns, generator
        self._watch = WeightWatch(self.model, saved)

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

    def _set_prior(self, prior: FunctionalPrior | None) -> None:
        """Be held by this prior alone: `memories` are those in it, which share nothing with any before."""
        self._prior = prior
        self._turns = NO_TASKS  # past tasks in the order in which they are drawn next
        self._watch = WeightWatch(self.model)

    def _prior_of(self, anchors: list[Anchor], num_outputs: int) -> FunctionalPrior | None:
        if not anchors:
            return None
        points = self._points_per_pass([anchor.memory for anchor in anchors])
        return FunctionalPrior(anchors, self.likelihood, num_outputs, points)

    def _precision_of(self, name: str, like: Tensor) -> Tensor:
        known = self.precision.get(name)
        if known is not None:
            return known
        return torch.full_like(_wide(like), self.prior_precision, requires_grad=False)

    def _prior_at(self, memories: list[Memory], precision: dict[str, Tensor]) -> FunctionalPrior:
        return FunctionalPrior.at(
            self.model,
            memories,
            self.likelihood,
            {name: 1 / value for name, value in precision.items()},
            self.kernel,
            self.jitter,
            self._points_per_pass(memories),
            self.memory_budget,
        )

    def _points_per_pass(self, memories: Sequence[Memory]) -> int:
        return points_per_pass(self.model, [(memory.inputs, memory.head) for memory in memories])

    def _cast(self, saved: str) -> Callable[[Anchor], Anchor]:
        """What brings anchors of a model in a saved precision to the present one's."""
        now = next(self.model.parameters()).dtype
        then, wide = getattr(torch, saved, None), torch.promote_types(now, torch.float32)

        def cast(anchor: Anchor) -> Anchor:
            x = inputs.transform(lambda part: part.to(now) if part.dtype == then else part, anchor.memory.inputs)
            return Anchor(replace(anchor.memory, inputs=x), anchor.mean.to(wide), anchor.kernel.to(wide))

        return cast

    def _check_anchor(self, anchor: Anchor, num_outputs: int | None) -> None:
        """An error unless the model can take the memory's inputs, and gives the outputs that were remembered."""
        memory = anchor.memory
        try:
            with evaluating(self.model), torch.no_grad():
                found = outputs(self.model, inputs.take(memory.inputs, slice(0, 2))).shape[1]
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            raise CheckpointError(
                f"the model cannot take the saved inputs ({error}); load into the same model."
            ) from error
        if found != num_outputs:
            raise CheckpointError(
                f"the model has {found} outputs, the saved one had {num_outputs}; load into the same model."
            )
        if memory.head is not None:
            check_head(memory.head, found)
        expected = found if memory.head is None else len(memory.head)
        if len(anchor.mean) != expected:
            raise CheckpointError(f"a task was saved with {len(anchor.mean)} means for a head of {expected} outputs.")
        self.likelihood.check_labels(memory.labels, expected)

    def _check_shapes(self, past: Mapping[str, Any]) -> None:
        """An error unless the weights are those that the past was remembered with."""
        present = {name: list(weight.shape) for name, weight in self.model.named_parameters()}
        for name, shape in past.items():
            if name not in present:
                raise CheckpointError(
                    f"the model has no parameter '{name}', the remembered one had; use the same model."
                )
            if present[name] != shape:
                raise CheckpointError(
                    f"the parameter '{name}' is {present[name]}, in the remembered model it was {shape}; use the same "
                    "model, with all its outputs from the start."
                )


def _fingerprint(saved: dict[str, Any]) -> dict[str, Any]:
    if not all(isinstance(of, list) and list(map(type, of)) == [float, float] for of in saved.values()):
        raise CheckpointError("the saved 'fingerprint' is not two numbers for each weight; restore it from a copy.")
    return saved


def _wide(weight: Tensor) -> Tensor:
    """The weight in single precision at least, in which what is computed from it is kept."""
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))


def _name_of(known: Mapping[str, Any], thing: Any) -> str:
    """The name under which `_named` finds a thing of ours again; any other gets one that it will not find."""
    name = getattr(thing, "__name__", repr(thing))
    return name if known.get(name) is thing else f"{getattr(thing, '__module__', '')}.{name}"


def _named(known: Mapping[str, Any], name: str, role: str) -> Any:
    if name not in known:
        raise CheckpointError(f"the saved {role} '{name}' is your own; give it again: load(..., {role}=...).")
    return known[name]
