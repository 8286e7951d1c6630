"""FROMP, functional regularisation of memorable past: Algorithm 1, as a penalty for any training loop."""

import math
import numbers
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import torch
from torch import Tensor, nn

from fromp import gp
from fromp.derivatives.budget import MEMORY_BUDGET, check_inputs, points_per_pass
from fromp.derivatives.model import Weights, as_head, detached, device_of, evaluating, outputs, trainable
from fromp.foundation import inputs, storage
from fromp.foundation.errors import CheckpointError, FrompError
from fromp.foundation.examples import as_examples
from fromp.foundation.inputs import Inputs
from fromp.foundation.state import State
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

LIKELIHOODS: dict[str, type[Likelihood]] = {c.__name__: c for c in (Categorical, Bernoulli, Gaussian, Poisson)}
KERNELS: dict[str, type[Kernel]] = {c.__name__: c for c in (FullKernel, IdentityKernel)}
SCORES: dict[str, Score] = {f.__name__: f for f in (memorability, least_memorable, random_score)}
SELECTIONS: dict[str, Select] = {f.__name__: f for f in (per_class, top)}


class Loss(NamedTuple):
    """The two things that a step descends the sum of, both scalars."""

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
    """What holds on to past tasks by a penalty: all that `TaskFree` and other training loops need of a method."""

    model: nn.Module
    likelihood: Likelihood

    def penalty(self) -> Tensor:
        """What is added to the mean nll: a scalar, zero before the first task has ended."""

    def end_task(self, data: Any, head: Sequence[int] | None = None) -> None:
        """Keep what will be needed of this task, before its data goes."""

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
        for name, value in {"tau": tau, "jitter": jitter}.items():
            if not 0 <= value < float("inf"):
                raise FrompError(f"{name}={value} must be zero or positive, and finite.")
        if not 0 < prior_precision < float("inf"):
            raise FrompError(f"prior_precision={prior_precision} must be positive and finite.")
        for name, count in {"memory_size": memory_size, "tasks_per_step": tasks_per_step}.items():
            if count is not None and (not isinstance(count, numbers.Integral) or count < 1):
                raise FrompError(f"{name}={count} must be a whole number of at least 1.")
        self.model, self.likelihood = model, likelihood
        self.tau, self.memory_size, self.prior_precision, self.jitter = tau, memory_size, prior_precision, jitter
        self.kernel, self.score, self.select, self.tasks_per_step = kernel, score, select, tasks_per_step
        self.memory_budget = memory_budget
        self.precision: dict[str, Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)
        self._set_prior(None)

    def penalty(self) -> Tensor:
        """tau / 2 sum_s (m_s - m0_s)' K_s^-1 (m_s - m0_s), Eq. (8) divided by N: a scalar; zero before any task."""
        if self._prior is None:
            return no_penalty(self.model)
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
            memories = [*(anchor.memory for anchor in self._anchors()), memory]
            self._check_model(_described(self.precision))
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
        is large wherever no data has touched the weights that matter there: it compares inputs, and is no probability.
        """
        check_inputs(x)
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
        precision stays: that is one number a weight, summed over all tasks.
        """
        anchors, place = self._anchors(), operator.index(task)
        if self._prior is None or not 0 <= place < len(anchors):
            raise FrompError(f"there is no task {task} to forget; {len(anchors)} are remembered, counted from 0.")
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
        settings = state["settings"]
        if likelihood is None:
            likelihood = _named(LIKELIHOODS, state["likelihood"]["name"], "likelihood")(
                **state["likelihood"]["settings"]
            )
        reg = cls(
            model,
            likelihood,
            **{name: settings[name] for name in ("tau", "memory_size", "prior_precision", "jitter", "tasks_per_step")},
            memory_budget=settings["memory_budget"],
            kernel=kernel or _named(KERNELS, settings["kernel"], "kernel"),
            score=score or _named(SCORES, settings["score"], "score"),
            select=select or _named(SELECTIONS, settings["select"], "select"),
        )
        reg.load_state_dict(state)
        return reg

    def state_dict(self) -> State:
        """Memory, precision, prior and draws; the model's weights are not part of it."""
        names = ("tau", "memory_size", "prior_precision", "jitter", "tasks_per_step", "memory_budget")
        settings = {name: getattr(self, name) for name in names}
        settings |= {
            "kernel": _name_of(KERNELS, self.kernel),
            "score": _name_of(SCORES, self.score),
            "select": _name_of(SELECTIONS, self.select),
        }
        likelihood = _name_of(LIKELIHOODS, type(self.likelihood))
        return {
            "settings": settings,
            "likelihood": {"name": likelihood, "settings": self.likelihood.settings()},
            "weights": _described(self.precision),
            "outputs": self._prior.num_outputs if self._prior else None,
            "precision": dict(self.precision),
            "tasks": [anchor.state_dict() for anchor in self._anchors()],
            "generator": self._generator.get_state(),
            "turns": self._turns,
        }

    def load_state_dict(self, state: State) -> None:
        """Return to a state that `state_dict` gave, if the model is still the one it was taken from."""
        self._check_model(state["weights"])
        device = device_of(self.model)
        anchors = [Anchor.from_state(task, self.kernel, device) for task in state["tasks"]]
        if anchors:
            self._check_outputs(anchors[0].memory, state["outputs"])
        self._set_prior(self._prior_of(anchors, state["outputs"]))
        self.precision = {name: value.to(device) for name, value in state["precision"].items()}
        self._generator.set_state(state["generator"].cpu())
        self._turns = state["turns"].cpu()

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
        """What holds the network, a task each; `memories` shows it, and may have been edited."""
        return list(self._prior.anchors) if self._prior else []

    def _set_prior(self, prior: FunctionalPrior | None) -> None:
        """Be held by this prior alone: `memories` are those in it, which share nothing with any before."""
        self._prior = prior
        self._turns = NO_TASKS  # past tasks in the order in which they are drawn next
        self.memories = [anchor.memory for anchor in self._anchors()]

    def _prior_of(self, anchors: list[Anchor], num_outputs: int) -> FunctionalPrior | None:
        if not anchors:
            return None
        points = self._points_per_pass([anchor.memory for anchor in anchors])
        return FunctionalPrior(anchors, self.likelihood, num_outputs, points)

    def _precision_of(self, name: str, like: Tensor) -> Tensor:
        known = self.precision.get(name)
        return torch.full_like(like, self.prior_precision, requires_grad=False) if known is None else known

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

    def _check_outputs(self, memory: Memory, expected: int) -> None:
        with evaluating(self.model), torch.no_grad():
            found = outputs(self.model, inputs.take(memory.inputs, slice(0, 2))).shape[1]
        if found != expected:
            raise CheckpointError(
                f"the model has {found} outputs, the saved one had {expected}; load into the same model."
            )

    def _check_model(self, past: dict[str, list[Any]]) -> None:
        """An error unless the weights are those that the past was remembered with."""
        present = _described(dict(self.model.named_parameters()))
        for name, (shape, dtype) in past.items():
            if name not in present:
                raise CheckpointError(
                    f"the model has no parameter '{name}', the remembered one had; use the same model."
                )
            if present[name] != [shape, dtype]:
                raise CheckpointError(
                    f"the parameter '{name}' is {present[name][0]} {present[name][1]}, in the remembered model it was "
                    f"{shape} {dtype}; use the same model, with all its outputs from the start."
                )


def _described(weights: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """Shape and type of each weight, as JSON values."""
    return {name: [list(w.shape), str(w.dtype).removeprefix("torch.")] for name, w in weights.items()}


def _name_of(known: Mapping[str, Any], thing: Any) -> str:
    """The name under which `_named` finds a thing of ours again; any other gets one that it will not find."""
    name = getattr(thing, "__name__", repr(thing))
    return name if known.get(name) is thing else f"{getattr(thing, '__module__', '')}.{name}"


def _named(known: Mapping[str, Any], name: str, role: str) -> Any:
    if name not in known:
        raise CheckpointError(f"the saved {role} '{name}' is your own; give it again: load(..., {role}=...).")
    return known[name]
