"""How the GGN of a task's data is taken: exactly, or unbiased from a few random directions."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, final

import torch
from torch import Tensor

from fromp.foundation.checked import Setting, count, positive
from fromp.foundation.errors import FrompError
from fromp.foundation.examples import Examples, SomeExamples
from fromp.likelihoods import Likelihood


class Curvature(ABC):
    """The directions s whose squared gradients (grad_w s . f)^2 add up to diag J' Lambda J, or do on average."""

    random: ClassVar[bool]  # whether it draws anything

    @abstractmethod
    def directions(self, likelihood: Likelihood, f: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """One direction in the outputs for each example at a time: (b, c)."""

    def examples(self, examples: Examples, generator: torch.Generator) -> Examples:
        """The examples that are looked at, each of which may stand for several."""
        return examples

    def settings(self) -> dict[str, float]:
        """The arguments that make an equal one."""
        return {}


@final
class ExactGGN(Curvature):
    """Every column of S, S S' = Lambda: c - 1 backward passes per example for `Categorical`."""

    random = False

    def directions(self, likelihood: Likelihood, f: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        return likelihood.columns(f)


@final
class SignGGN(Curvature):
    """S e with random signs e: E[S e e' S'] = Lambda, so that the GGN is right on average however few the columns are.

    columns: backward passes per example. share: of the examples, drawn at random, each of which then stands for
    1 / share of them.
    """

    random = True
    columns = Setting(count)
    share = Setting(positive)

    def __init__(self, columns: int = 1, share: float = 1.0) -> None:
        self.columns, self.share = columns, share
        if self.share > 1:
            raise FrompError(f"share={share} is of the task's examples; use a number above 0 and up to 1.")

    def directions(self, likelihood: Likelihood, f: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        for _ in range(self.columns):
            signs = torch.randint(0, 2, f.shape, generator=generator).to(f) * 2 - 1
            yield likelihood.root_times(f, signs) / self.columns**0.5

    def examples(self, examples: Examples, generator: torch.Generator) -> Examples:
        if self.share == 1:
            return examples
        kept = max(1, round(self.share * len(examples)))
        some = SomeExamples(examples, torch.randperm(len(examples), generator=generator)[:kept].sort().values)
        some.weight = examples.weight * len(examples) / kept
        return some

    def settings(self) -> dict[str, float]:
        return {"columns": self.columns, "share": self.share}
