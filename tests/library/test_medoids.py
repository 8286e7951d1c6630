"""Typical points: the examples nearest to the centres of k-means."""

import pytest
import torch
from torch import nn

from fromp import Categorical, MixedPast, per_class
from fromp.foundation.errors import DataError
from fromp.medoids import medoids


def clusters(spread=0.05):
    """Three far clusters of twenty points in each of two classes, and their centres."""
    generator = torch.Generator().manual_seed(1)
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [30.0, 30.0], [40.0, 30.0], [30.0, 40.0]])
    x = centres.repeat_interleave(20, 0) + spread * torch.randn(120, 2, generator=generator)
    return x, torch.arange(120) // 60, torch.arange(120) // 20


def test_with_one_point_per_class_it_is_the_example_nearest_to_the_mean():
    x, classes, _ = clusters(spread=3.0)
    kept = per_class(medoids(x, classes, 2), classes, 2)
    for c, index in enumerate(kept):
        own = (classes == c).nonzero().flatten()
        assert index == own[(x[own] - x[own].mean(0)).square().sum(1).argmin()]


def test_the_points_are_lloyds_against_plain_loops():
    x, classes, _ = clusters(spread=4.0)
    x, classes = x[:60].double(), classes[:60]
    generator = torch.Generator().manual_seed(3)
    torch.rand(60, generator=generator)
    centres = [x[int(k)] for k in torch.randperm(60, generator=generator)[:4]]
    for _ in range(10):
        owner = [min(range(4), key=lambda k: float((point - centres[k]).square().sum())) for point in x]
        groups = [[point for point, own in zip(x, owner, strict=True) if own == k] for k in range(4)]
        centres = [torch.stack(g).mean(0) if g else c for g, c in zip(groups, centres, strict=True)]
    expected = {min(range(60), key=lambda i: float((x[i] - c).square().sum())) for c in centres}
    assert set((medoids(x, classes, 4, seed=3) >= 1).nonzero().flatten().tolist()) == expected


def test_points_are_shared_between_classes_and_cover_more_than_random_ones():
    x, classes, cluster = clusters()
    covered = [len(cluster[per_class(medoids(x, classes, 12, seed=s), classes, 12)].unique()) for s in range(20)]
    assert sum(covered) >= 19 * 6
    kept = per_class(medoids(x, classes, 12), classes, 12)
    assert (classes[kept] == 0).sum() == 6


def test_coinciding_points_are_filled_up():
    x = torch.zeros(10, 2)
    scores = medoids(x, torch.zeros(10, dtype=torch.long), 4)
    assert (scores >= 1).sum() == 1
    assert len(per_class(scores, torch.zeros(10), 4).unique()) == 4


def test_the_same_seed_gives_the_same_points_and_the_global_state_stays():
    x, classes, _ = clusters()
    state = torch.get_rng_state()
    torch.testing.assert_close(medoids(x, classes, 8, seed=5), medoids(x, classes, 8, seed=5))
    assert (torch.get_rng_state() == state).all()


def test_a_regulariser_keeps_them():
    x, classes, _ = clusters()
    reg = MixedPast(nn.Linear(2, 2), Categorical(), memory_size=6)
    scores = medoids(x, classes, 6)
    reg.end_task((x, classes), scores=scores)
    assert sorted(reg.memories[0].indices.tolist()) == sorted(per_class(scores, classes, 6).tolist())


@pytest.mark.parametrize(
    ("x", "classes", "words"),
    [
        (torch.zeros(3, 2), torch.zeros(2), "3 inputs and 2 classes"),
        (torch.zeros(3, 2, dtype=torch.long), torch.zeros(3), r"torch.int64 have no centres"),
    ],
)
def test_what_has_no_centres_is_an_error(x, classes, words):
    with pytest.raises(DataError, match=words):
        medoids(x, classes, 2)
