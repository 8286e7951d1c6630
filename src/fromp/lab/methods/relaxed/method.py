"""Relaxed FROMP as a method of the laboratory."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from fromp import gp
from fromp.curvature import SignGGN
from fromp.derivatives.model import Head, detached, named_weights, trainable
from fromp.foundation.errors import FrompError
from fromp.foundation.examples import Examples, TaskData, TensorExamples
from fromp.lab.benchmarks.training import Training
from fromp.lab.methods import fromp
from fromp.lab.methods.base import HeadBatch, Method, Penalised, TrainingSets
from fromp.lab.methods.card import MethodCard, register
from fromp.lab.methods.relaxed.covariance import EXACT, Blocks, Covariance, Diagonal, Kronecker, last_layer, layers
from fromp.lab.methods.relaxed.points import POINTS
from fromp.lab.methods.relaxed.regulariser import Relaxed
from fromp.lab.methods.relaxed.von import VON
from fromp.lab.settings import AtLeastOne, NotNegative, Positive, settings
from fromp.likelihoods import Likelihood
from fromp.protocol import Loss

Count = Annotated[int, Field(ge=0)]
PartOfOne = Annotated[float, Field(gt=0, le=1)]


@settings
class Settings:
    """FROMP's, and one or two for each approximation; the defaults are the paper's approximations."""

    tau: NotNegative = 0.5
    """Strength of the penalty beside the mean loss: the paper's tau divided by N."""
    memory: AtLeastOne
    """Points kept of each task."""
    prior_precision: Positive = 1e-5
    """delta, the precision of each weight before any data."""
    jitter: NotNegative = 1e-5
    """Added to the kernel's diagonal."""
    prior_samples: Count = 0
    """Draws of the past weights at which the prior is taken; 0 for their mean."""
    trace_directions: Count = 0
    """Random directions that estimate the trace at each step; 0 leaves the trace out."""
    across_tasks: bool = False
    """Whether one kernel ties the tasks together."""
    across_classes: bool = False
    """Whether one kernel ties the classes together."""
    covariance: Literal["diagonal", "layers", "whole", "kronecker"] = "diagonal"
    """Of the weights: diagonal, exact within layers, exact, or Kronecker-factored."""
    weights: Literal["all", "last-layer"] = "all"
    """The weights that the kernel sees."""
    curvature_share: PartOfOne = 1.0
    """The share of a task's data whose GGN is taken, with one random direction per example if it is below 1."""
    update: Literal["adam", "von", "von-mean"] = "adam"
    """Adam and a Laplace step, variational online Newton, or its deterministic form."""
    points: Literal["trace", "random", "leverage", "centres", "mixed"] = "trace"
    """Which points are kept: those with the highest trace of Lambda, random ones, by leverage, k-centres, or mixed."""
    von_beta: PartOfOne = 0.1
    """The share of a minibatch in VON's covariance."""


class RelaxedMethod(Penalised):
    """mean nll + Relaxed, trained by Adam or by VON."""

    def __init__(self, regulariser: Relaxed, s: Settings) -> None:
        super().__init__(regulariser)
        self._relaxed, self._update, self._beta = regulariser, s.update, s.von_beta
        self._von: VON | None = None
        self._num_examples = 0
        self.starts_plain = s.update == "adam"

    def begin_task(self, examples: Examples, head: Head, past: TrainingSets) -> TrainingSets:
        self._num_examples = len(examples)
        return super().begin_task(examples, head, past)

    def optimizer(self, training: Training) -> torch.optim.Optimizer:
        covariance = self._relaxed.covariance
        if self._update == "adam" or not isinstance(covariance, Diagonal):
            return super().optimizer(training)
        if not self._num_examples:
            raise FrompError("VON needs to know when a task begins; use update=adam where that is not told.")
        own = {name: w for name, w in named_weights(self.model).items() if name in covariance.names}
        scale = self._num_examples * self._relaxed.tau
        prior = {name: covariance.delta + scale * c for name, c in self._relaxed.curvature().items()}
        given = own, prior, self._num_examples, training.lr, self._beta
        self._von = VON(*given, self._update == "von", self._relaxed.draws)
        return self._von

    def loss(self, batch: Sequence[HeadBatch]) -> Loss:
        if self._von is not None:
            ((x, y, head),) = batch
            self._von.perturb()
            ggn = gp.ggn_diagonal(self.model, tuple(self._von.weights), TensorExamples(x, y), self.likelihood, head)
            self._von.observe({name: total / len(y) for name, total in ggn.items()})
        return super().loss(batch)

    def end_task(self, data: TaskData, head: Sequence[int] | None = None) -> None:
        self._relaxed.end_task(data, head, None if self._von is None else self._von.share())


def covariance_of(model: nn.Module, s: Settings, seed: int) -> Covariance:
    """The covariance that the settings ask for, before any task."""
    weights = detached(model, trainable(model) if s.weights == "all" else last_layer(model))
    if s.covariance == "diagonal":
        curvature = EXACT if s.curvature_share == 1 else SignGGN(share=s.curvature_share)
        return Diagonal(weights, s.prior_precision, curvature, seed)
    if s.curvature_share < 1:
        raise FrompError(f"curvature_share={s.curvature_share} is for covariance=diagonal, not {s.covariance}.")
    if s.covariance == "kronecker":
        return Kronecker(weights, s.prior_precision)
    names = list(weights)
    return Blocks(weights, s.prior_precision, layers(names) if s.covariance == "layers" else [names])


def _build(model: nn.Module, likelihood: Likelihood, s: Settings, seed: int) -> Method:
    if s.update != "adam" and (s.covariance != "diagonal" or s.weights != "all"):
        raise FrompError(f"update={s.update} has a diagonal covariance of all weights; leave both settings out.")
    if s.points != "trace" and (s.covariance != "diagonal" or s.weights != "all"):
        raise FrompError(f"points={s.points} needs a diagonal covariance of all weights; leave both settings out.")
    regulariser = Relaxed(
        model,
        likelihood,
        s.tau,
        s.memory,
        s.jitter,
        covariance_of(model, s, seed),
        prior_samples=s.prior_samples,
        trace_directions=s.trace_directions,
        across_tasks=s.across_tasks,
        across_classes=s.across_classes,
        points=None if s.points == "trace" else POINTS[s.points],
        seed=seed,
    )
    return RelaxedMethod(regulariser, s)


register(
    MethodCard(
        name="fromp-relaxed",
        title="FROMP, relaxed",
        paper="Pan et al. 2020, appendix B",
        keeps="memorable points; one kernel per task and class, or fewer; a covariance of the weights",
        step_cost="one pass over all memory, times the kernels; two more with the trace",
        settings=Settings,
        build=_build,
        colour=19,
        presets=fromp.CARD.presets,
        grows_with=fromp.CARD.grows_with,
        shrinks_with=fromp.CARD.shrinks_with,
    )
)
