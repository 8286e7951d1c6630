"""Finetune, separate and joint."""

import pytest
import torch
from oracles.small import HEADS, data, network
from torch import nn

from fromp import Categorical
from fromp.foundation.examples import TensorExamples
from fromp.lab.benchmarks.training import Training
from fromp.lab.engine.fit import Fit
from fromp.lab.methods.bounds import Joint, Separate


@pytest.mark.parametrize("sizes", [(5, 3), (7, 1)])
def test_a_batch_of_several_heads_is_one_batch_to_batch_norm(sizes):
    """A part of one example would have no statistics of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 6)).double()
    method = Joint(model, Categorical(), tasks=2)
    parts = [(*data(place, size), HEADS[place]) for place, size in enumerate(sizes)]
    f = model(torch.cat([x for x, _, _ in parts]))
    rows = f.split(sizes)
    expected = sum(
        nn.functional.cross_entropy(row[:, list(head)], y, reduction="sum")
        for row, (_, y, head) in zip(rows, parts, strict=True)
    ) / sum(sizes)
    torch.testing.assert_close(method.data_loss(parts), expected)


def learn(method, tasks, epochs=20):
    """Each task in turn, all with the same labels and no head of their own."""
    past = []
    for task in tasks:
        examples = TensorExamples(*data(task))
        training = method.begin_task(examples, None, past)
        for _ in Fit(method, training, Training(epochs=epochs, batch_size=4, lr=1e-2), seed=task).steps():
            pass
        method.end_task(examples)
        past.append((examples, None))


def test_separate_is_a_network_of_its_own_for_each_task():
    both = Separate(network(2), Categorical())
    learn(both, [0, 1])
    for place, task in enumerate([0, 1]):
        alone = Separate(network(2), Categorical())
        learn(alone, [task])
        x = data(task)[0]
        assert torch.equal(both.predict_outputs(x, None, place), alone.predict_outputs(x, None, 0))
    assert not torch.equal(both.predict_outputs(x, None, 0), both.predict_outputs(x, None, 1))


def test_joint_trains_at_the_last_task_on_the_data_of_all():
    method = Joint(network(6), Categorical(), tasks=3)
    tasks = [TensorExamples(*data(task)) for task in range(3)]
    assert method.begin_task(tasks[0], None, []) == []
    assert method.begin_task(tasks[1], None, [(tasks[0], None)]) == []
    [(everything, head)] = method.begin_task(tasks[2], None, [(tasks[0], None), (tasks[1], None)])
    assert head is None
    assert torch.equal(everything.take(torch.arange(36))[0], torch.cat([data(task)[0] for task in range(3)]))
    past = list(zip(tasks[:2], HEADS[:2], strict=True))
    assert method.begin_task(tasks[2], HEADS[2], past) == list(zip(tasks, HEADS, strict=True))
