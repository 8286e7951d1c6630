"""Any choice of points, contexts and metrics: `FROMP` and its relatives in one frame."""

import os
from collections.abc import Sequence
from functools import partial
from typing import final

from torch import nn

from fromp.derivatives.model import Output
from fromp.foundation.checked import Setting, number
from fromp.foundation.collectives import Ranks
from fromp.functional import Functional
from fromp.holding import Hold
from fromp.keeping import Transform
from fromp.likelihoods import Likelihood
from fromp.memory import Score, Select, per_class, random_score


@final
class Composed(Functional):
    """The sum of any terms.

        Composed(model, Categorical(), [Hold(Remembered(), Logits(), 1.0)])      # functional L2
        Composed(model, Categorical(), [Hold(PresentBatch(), Divergence(2), 1.0)])  # learning without forgetting
        Composed(model, Categorical(), [Hold(Remembered(), DataWide(), 1.0)])    # sparse function-space representation

    holds: the terms of the penalty.
    weight_strength: of the parabola around the old weights, by the GGN diagonal of the past tasks' data that are not
        among the points kept; 0 for none.
    memory_size, total_memory, score, select, seed, output, keep, ranks: as for `FROMP`, but for the score, by which
        random examples are kept.
    """

    settings = ("memory_size", "total_memory", "weight_strength")
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
        output: Output | None = None,
        total_memory: int | None = None,
        keep: Transform | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self._holds, self.weight_strength = tuple(holds), weight_strength
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

    @property
    def holds(self) -> Sequence[Hold]:
        return self._holds

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        model: nn.Module,
        holds: Sequence[Hold],
        likelihood: Likelihood | None = None,
        *,
        score: Score = random_score,
        select: Select = per_class,
        output: Output | None = None,
        keep: Transform | None = None,
        prefix: str = "",
    ) -> "Composed":
        """What `save` wrote, for the same model; the terms, and what else is not a number, are given again.

        prefix: by which the names of the model's parameters are longer, or shorter, than those that were saved.
        """
        given = partial(cls, model, holds=holds, score=score, select=select, output=output, keep=keep)
        return cls._loaded(path, model, likelihood, lambda settings, own: given(likelihood=own, **settings), prefix)

    def _in_words(self) -> str:
        return f"{len(self.holds)} holds, "
