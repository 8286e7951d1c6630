"""Functional regularisation of mixed past: the preset that this library recommends."""

import os
from collections.abc import Sequence
from functools import partial
from typing import final

from torch import nn

from fromp.contexts.mixtures import Mixtures
from fromp.contexts.present_batch import PresentBatch
from fromp.contexts.remembered import Remembered
from fromp.derivatives.model import Output
from fromp.foundation.checked import Setting, count, number
from fromp.foundation.collectives import Ranks
from fromp.functional import Functional
from fromp.holding import Hold
from fromp.keeping import Transform
from fromp.likelihoods import Likelihood
from fromp.metrics.divergence import Divergence
from fromp.metrics.labels import Labels
from fromp.metrics.pointwise import Pointwise


@final
class MixedPast(Functional):
    """Holds a network's outputs at mixtures of remembered points, and its resting heads at the present minibatch.

        reg = MixedPast(model, Categorical(), memory_size=200)
        loss = cross_entropy(model(x), y) + reg.penalty(x)  # in the training loop
        reg.end_task((x, y))                                # after each task

    The penalty is the sum of

        strength          sum_s mean_z d(f(z), f_old(z)) at mixtures z = (1 - u) z_i + u z_j of a remembered point of
                          task s and any with the same head
        present_strength  sum_h mean_x d(f_h(x), f_old_h(x)) at the present minibatch, over the past heads h that are
                          not being trained
        label_strength    sum_s mean_i nll(f(z_i), y_i) over remembered points
        weight_strength   1/2 sum_w v_w (w - w_old)^2, v the GGN diagonal of what is not kept of the past tasks, each
                          divided by its size

    where "old" is the network at the last task's end. A step costs the same however many tasks there are.

    memory_size: random examples kept of each task, shared evenly between its classes.
    points_per_step: mixtures per step; half as many remembered points are drawn for their labels.
    metric: the distance d: `Divergence(2.0)` unless given, whose gradient is bounded as that of a label is, so that no
        optimiser is thrown off by it. `Logits()` is |f - f_old|^2, with strengths a tenth as large.
    seed: of all draws. The global random state is never touched.
    total_memory, output, keep: as for `FROMP`.
    ranks: the processes that learn each task together, as for `FROMP`. They share the mixtures of each step.
    """

    settings = (
        "memory_size", "strength", "present_strength", "label_strength", "weight_strength", "points_per_step",
        "total_memory",
    )  # fmt: skip
    strength = Setting(number)
    present_strength = Setting(number)
    label_strength = Setting(number)
    weight_strength = Setting(number)
    points_per_step = Setting(count)

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        memory_size: int = 200,
        strength: float = 0.5,
        present_strength: float = 0.5,
        *,
        label_strength: float = 0.0,
        weight_strength: float = 0.0,
        points_per_step: int = 256,
        metric: Pointwise | None = None,
        seed: int = 0,
        output: Output | None = None,
        total_memory: int | None = None,
        keep: Transform | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__(
            model, likelihood, memory_size, seed=seed, output=output, total_memory=total_memory, keep=keep, ranks=ranks
        )
        self.strength, self.present_strength = strength, present_strength
        self.label_strength, self.weight_strength = label_strength, weight_strength
        self.points_per_step = points_per_step
        self.metric = Divergence(2.0) if metric is None else metric

    @property
    def holds(self) -> Sequence[Hold]:
        return (
            Hold(Mixtures(self.points_per_step), self.metric, self.strength),
            Hold(PresentBatch(), self.metric, self.present_strength),
            Hold(Remembered(max(1, self.points_per_step // 2)), Labels(), self.label_strength),
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        model: nn.Module,
        likelihood: Likelihood | None = None,
        metric: Pointwise | None = None,
        *,
        output: Output | None = None,
        keep: Transform | None = None,
        prefix: str = "",
    ) -> "MixedPast":
        """What `save` wrote, for the same model. A metric, and what you wrote yourself, is given again.

        prefix: by which the names of the model's parameters are longer, or shorter, than those that were saved.
        """
        given = partial(cls, model, metric=metric, output=output, keep=keep)
        return cls._loaded(path, model, likelihood, lambda settings, own: given(likelihood=own, **settings), prefix)

    def _in_words(self) -> str:
        return f"strength={self.strength:g}, present_strength={self.present_strength:g}, "
