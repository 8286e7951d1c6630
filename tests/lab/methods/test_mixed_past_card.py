"""The points that the lab's mixed-past keeps."""

import torch
from oracles.small import data, network

from fromp import Categorical, per_class
from fromp.lab.methods import method
from fromp.medoids import medoids


def kept(points):
    card = method("mixed-past")
    built = card.build(network(), Categorical(), card.settings(memory=4, points=points), 3)
    x, y = data(0)
    built.end_task((x, y), [0, 1])
    return x, y, built.memories[0].indices


def test_medoids_are_kept_if_asked_for():
    x, y, indices = kept("medoids")
    expected = per_class(medoids(x.flatten(1), y, 4, seed=3), y, 4)
    assert indices.tolist() == expected.tolist()


def test_random_points_are_others():
    assert not torch.equal(kept("medoids")[2], kept("random")[2])
