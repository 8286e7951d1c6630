"""A metric that looks at one point at a time."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from fromp.likelihoods import Likelihood


class Pointwise(ABC):
    """How far the outputs at a point are from where they are to be held."""

    of_labels: ClassVar[bool] = False
    """Whether they are held at labels, and not at the old network's outputs."""

    @abstractmethod
    def distance(
        self, likelihood: Likelihood, f: Tensor, old: Tensor, labels: Sequence[tuple[Tensor | float, Tensor]]
    ) -> Tensor:
        """At each point, from outputs f: (n, c) and `old`: (n, c), or from labels with their shares: (n,).

        `old` is f itself where a metric is `of_labels`.
        """
