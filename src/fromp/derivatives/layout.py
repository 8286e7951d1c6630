"""Where the examples of a batch lie in a tensor of a forward pass."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The examples lie along `axis`, which is (examples, positions) or (positions, examples) flattened."""

    axis: int
    shape: tuple[int, int]
    examples: int  # which of the two are the examples: 0 or 1

    @property
    def positions(self) -> int:
        """Positions of each example along the axis."""
        return self.shape[1 - self.examples]

    def front(self, t: Tensor) -> Tensor:
        """The same with the examples in front: (b, *t.shape), where `axis` holds the positions."""
        return t.unflatten(self.axis, self.shape).movedim(self.axis + self.examples, 0)


def layouts(shape: tuple[int, ...], axes: Iterable[int], b: int) -> list[Layout]:
    """The ways in which b examples may lie along one of the axes."""
    found = []
    for axis in axes:
        n = shape[axis]
        if n == b:
            found.append(Layout(axis, (b, 1), 0))
        elif n and n % b == 0:
            found += [Layout(axis, (b, n // b), 0), Layout(axis, (n // b, b), 1)]
    return found
