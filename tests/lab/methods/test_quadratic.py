"""EWC and DLP against plain loops."""

import math

import pytest
import torch
from oracles import naive
from oracles.small import HEADS, copies, data, move, network

from fromp import Categorical
from fromp.foundation.examples import TensorExamples
from fromp.gp import ggn_diagonal
from fromp.lab.methods.quadratic import DLP, EWC
from fromp.taskfree.reservoir import Sample


def after_tasks(method, count):
    """The mean Fisher diagonals and the weights at the end of each task, by plain loops.

    The tasks differ in size, and in how many examples each one stands for: a mean depends on neither.
    """
    ends = []
    for task in range(count):
        move(method.model, 0.3)
        x, y = data(task, 12 - 4 * task)
        weights = copies(dict(method.model.named_parameters()))
        total = naive.ggn_diagonal(method.model, x, y, len(x), method.likelihood, HEADS[task]) / len(x)
        parts = total.split([w.numel() for w in weights.values()])
        fisher = {name: part.reshape(w.shape) for (name, w), part in zip(weights.items(), parts, strict=True)}
        ends.append((fisher, weights))
        method.end_task(Sample(x, y, weight=2.0 + task), HEADS[task])
    move(method.model, 0.1)
    return ends


def test_ewc_is_a_penalty_for_each_task():
    method = EWC(network(), Categorical(), strength=3.0)
    ends = after_tasks(method, 3)
    weights = dict(method.model.named_parameters())
    expected = sum(
        1.5 * (fisher[name] * (weights[name] - then[name]).square()).sum() for fisher, then in ends for name in weights
    )
    ours, theirs = (torch.autograd.grad(value, list(weights.values())) for value in (method.penalty(), expected))
    torch.testing.assert_close(method.penalty(), expected, rtol=1e-10, atol=0)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-12)


def test_dlp_is_one_penalty_at_the_last_weights():
    method = DLP(network(), Categorical(), strength=3.0)
    ends = after_tasks(method, 3)
    expected = sum(
        1.5 * (fisher[name] * (w - ends[-1][1][name]).square()).sum()
        for fisher, _ in ends
        for name, w in method.model.named_parameters()
    )
    torch.testing.assert_close(method.penalty(), expected, rtol=1e-10, atol=0)


def test_ewc_and_dlp_are_the_same_with_one_past_task_and_differ_with_two():
    for count, same in [(1, True), (2, False)]:
        penalties = []
        for method in (EWC(network(), Categorical(), 2.0), DLP(network(), Categorical(), 2.0)):
            after_tasks(method, count)
            penalties.append(method.penalty().item())
        assert math.isclose(*penalties, rel_tol=1e-12) == same


@pytest.mark.parametrize("name", ["ewc", "dlp"])
def test_a_task_holds_a_weight_that_was_frozen_in_it(name):
    """It has a Fisher information there like any other, and may be trained again later."""
    model = network(outputs=2)
    method = {"ewc": EWC, "dlp": DLP}[name](model, Categorical(), strength=1.0)
    method.end_task(data(0))
    model[0].requires_grad_(False)
    method.end_task(data(1))
    names = tuple(dict(model.named_parameters()))
    tasks = [ggn_diagonal(model, names, TensorExamples(*data(place)), Categorical()) for place in range(2)]
    for name in names:
        torch.testing.assert_close(method.fisher[name], sum(task[name] for task in tasks) / len(data(0)[1]))
