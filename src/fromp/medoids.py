"""Typical examples as points to remember: those nearest to the centres of k-means."""

import torch
from torch import Tensor

from fromp.foundation.errors import DataError
from fromp.memory import share


def medoids(x: Tensor, classes: Tensor, size: int, *, seed: int = 0, passes: int = 10) -> Tensor:
    """Scores by which `per_class` keeps the examples nearest to the centres of k-means in each class: (N,).

        reg.end_task((x, y), scores=medoids(x, y, reg.memory_size))

    A class has as many centres as it is given points; Lloyd's algorithm moves them `passes` times, from random examples
    on. The medoids have scores of 1 to 2, all others, which fill up where two centres have the same one, below 1.
    """
    if len(x) != len(classes):
        raise DataError(f"there are {len(x)} inputs and {len(classes)} classes; give one class per input.")
    if not x.is_floating_point():
        raise DataError(f"inputs of type {x.dtype} have no centres; give floating-point inputs (x.float() for images).")
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(len(x), generator=generator).to(x.device)
    present = classes.unique()
    quotas = share(size, [int((classes == c).sum()) for c in present])
    for c, quota in zip(present, quotas, strict=True):
        members = (classes == c).nonzero().flatten()
        points = x[members].flatten(1)
        centres = points[torch.randperm(len(points), generator=generator)[:quota].to(x.device)]
        for _ in range(passes):
            centres = _means(points, torch.cdist(points, centres).argmin(1), centres)
        if quota:
            scores[members[torch.cdist(centres, points).argmin(1).unique()]] += 1.0
    return scores


def _means(points: Tensor, nearest: Tensor, centres: Tensor) -> Tensor:
    """The mean of the points of each centre; a centre without points stays: (k, d)."""
    sums = torch.zeros_like(centres).index_add_(0, nearest, points)
    counts = nearest.bincount(minlength=len(centres)).unsqueeze(1)
    return torch.where(counts > 0, sums / counts.clamp(min=1), centres)
