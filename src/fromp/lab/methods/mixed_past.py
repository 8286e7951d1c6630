"""Functional regularisation of mixed past."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from fromp.composed import Composed
from fromp.contexts.present_batch import PresentBatch
from fromp.contexts.remembered import Remembered
from fromp.derivatives.model import of_head, outputs, trains_as_it_predicts
from fromp.foundation import inputs
from fromp.foundation.errors import FrompError
from fromp.foundation.examples import TaskData, as_examples
from fromp.functional import Functional
from fromp.holding import Hold
from fromp.lab.methods.base import HeadBatch, Method, Penalised
from fromp.lab.methods.card import UNCLIPPED, MethodCard, register
from fromp.lab.settings import AtLeastOne, NotNegative, settings
from fromp.likelihoods import Likelihood
from fromp.medoids import medoids
from fromp.metrics.divergence import Divergence
from fromp.metrics.labels import Labels
from fromp.metrics.logits import Logits
from fromp.metrics.means import Means
from fromp.metrics.output_hessian import OutputHessian
from fromp.metrics.pointwise import Pointwise
from fromp.mixed_past import MixedPast
from fromp.protocol import Loss

METRICS: dict[str, Pointwise] = {
    "logits": Logits(), "means": Means(), "output-hessian": OutputHessian(), "divergence": Divergence(),
    "distillation": Divergence(2.0),
}  # fmt: skip


# How the points to remember are scored: by their inputs and classes, for so many points, with a seed.
Points: TypeAlias = Callable[[Tensor, Tensor, int, int], Tensor]
POINTS: dict[str, Points | None] = {
    "random": None, "medoids": lambda x, y, size, seed: medoids(x, y, size, seed=seed)
}  # fmt: skip


class AtPresentBatch(Penalised):
    """mean nll + regulariser.penalty(x, head), for regularisers that look at the present minibatch."""

    def __init__(
        self, regulariser: Functional, points: Points | None = None, seed: int = 0, one_pass: bool | None = None
    ) -> None:
        super().__init__(regulariser)
        self._functional, self._points, self._seed = regulariser, points, seed
        self._one_pass = one_pass  # whether one pass serves both terms; None until that is known

    def loss(self, batch: Sequence[HeadBatch]) -> Loss:
        ((x, y, head),) = batch  # it trains on one task at a time
        if self._one_pass is None:
            self._one_pass = trains_as_it_predicts(self.model, x)
        if not self._one_pass:
            return Loss(self.data_loss(batch), self._functional.penalty(x, head))
        f = outputs(self.model, x)
        return Loss(self.likelihood.nll(of_head(f, head), y).mean(), self._functional.penalty(x, head, f))

    def end_task(self, data: TaskData, head: Sequence[int] | None = None) -> None:
        """Keep the points that its scores choose; random ones without."""
        if self._points is None:
            self._functional.end_task(data, head)
            return
        examples = as_examples(data)
        x, y = examples.take(torch.arange(len(examples)))
        pixels = torch.cat([part.flatten(1) for part in inputs.tensors(x)], 1)
        scores = self._points(pixels, self.likelihood.classes(y), self._functional.memory_size, self._seed)
        self._functional.end_task(examples, head, scores=scores)


@settings
class MixedPastSettings:
    """What MixedPast is built with."""

    memory: AtLeastOne
    """Points kept of each task."""
    strength: NotNegative = 0.03
    """Weight of the distance at mixtures of remembered points."""
    present_strength: NotNegative = 0.02
    """Weight of the distance of resting heads at the present minibatch."""
    label_strength: NotNegative = 0.0
    """Weight of the nll of remembered points."""
    weight_strength: NotNegative = 0.0
    """Weight of the parabola around the old weights."""
    points_per_step: AtLeastOne = 256
    """Mixtures per step; half as many remembered points are drawn for their labels."""
    mixtures: bool = True
    """Whether the function is held at mixtures of remembered points, or at the points themselves."""
    metric: Literal["logits", "means", "output-hessian", "divergence", "distillation"] = "logits"
    """The distance of outputs: logits, means, output-hessian, divergence, or distillation (at temperature 2)."""
    one_pass: bool = False
    """Whether resting heads are held in the pass that trains the present one, with its dropout: a third less work."""
    points: Literal["random", "medoids"] = "random"
    """Which points of a class are kept: random ones, or those nearest to the centres of k-means."""


def _mixed_past(model: nn.Module, likelihood: Likelihood, s: Any, seed: int) -> Method:
    if POINTS[s.points] is not None and getattr(s, "boundaries", "given") != "given":
        raise FrompError(
            f"points={s.points} needs all data of a task, which are gone when its end is found; use points=random."
        )
    metric = METRICS[s.metric]
    if s.mixtures:
        functional: Functional = MixedPast(
            model,
            likelihood,
            s.memory,
            s.strength,
            s.present_strength,
            label_strength=s.label_strength,
            weight_strength=s.weight_strength,
            points_per_step=s.points_per_step,
            metric=metric,
            seed=seed,
        )
    else:
        holds = [
            Hold(Remembered(s.points_per_step), metric, s.strength),
            Hold(PresentBatch(), metric, s.present_strength),
            Hold(Remembered(max(1, s.points_per_step // 2)), Labels(), s.label_strength),
        ]
        functional = Composed(model, likelihood, holds, s.memory, weight_strength=s.weight_strength, seed=seed)
    return AtPresentBatch(functional, POINTS[s.points], seed, s.one_pass or None)


MULTI_HEAD = {"strength": 0.004, "present_strength": 0.004, "points_per_step": 128}
CIFAR = {
    "schedule": "late-decay",  # the first task is the one that all methods share
    "late_lr": 3e-4,
    "strength": 0.3,
    "present_strength": 0.3,
    "points_per_step": 128,
    "metric": "distillation",
    "one_pass": True,
}
SHARED_HEAD = {"label_strength": 1.0, "points_per_step": 128, "points": "medoids"}

register(
    MethodCard(
        name="mixed-past",
        title="MixedPast",
        paper="this library",
        keeps="random points; the previous network",
        step_cost="a second minibatch, and a third without its gradient",
        settings=MixedPastSettings,
        build=_mixed_past,
        random_memory=True,
        colour=18,
        presets={
            **UNCLIPPED,
            "split-*": {"lr": 1e-3, "schedule": "linear-decay"},
            "split-cifar": CIFAR,
            "split-cifar-11": CIFAR,  # chosen on the shorter stream
            "permuted-*": {"schedule": "linear-decay"},
            "permuted-mnist": {"lr": 3e-3, "strength": 0.05},
            "split-mnist": MULTI_HEAD,
            "split-mnist-domain": {**SHARED_HEAD, "epochs": 3, "strength": 0.1},
            "split-mnist-class": {
                "batch_size": 64,
                "lr": 5e-4,
                "epochs": 5,
                "strength": 0.01,
                "label_strength": 10.0,
                "points_per_step": 512,
                "points": "medoids",
            },
        },
    )
)
