"""Replay, DER++ and functional L2 against plain loops."""

import pytest
import torch
from oracles.small import HEADS, data, move, network

from fromp import FROMP, Categorical, Gaussian, IdentityKernel
from fromp.lab.methods.base import mean_nll
from fromp.lab.methods.rehearsal import DERpp, FunctionalL2, Replay
from fromp.memory import random_score


def test_functional_l2_is_fromp_with_the_identity_for_kernel():
    """Where outputs are means: 1/2 tau |m - m0|^2 is strength |f - f0|^2 with tau twice the strength."""
    model = network(outputs=2)
    x = [data(task)[0] for task in range(3)]
    y = [torch.zeros(12, 2).double()] * 3
    l2 = FunctionalL2(model, Gaussian(1.0), memory=12, strength=0.7, seed=0)
    fromp = FROMP(model, Gaussian(1.0), 1.4, 12, 1.0, 0.0, kernel=IdentityKernel, score=random_score)
    for task in range(3):
        move(model, 0.2)
        l2.end_task((x[task], y[task]))
        fromp.end_task((x[task], y[task]))
        assert l2.penalty().item() == 0
    move(model, 0.3)
    weights = list(model.parameters())
    torch.testing.assert_close(l2.penalty(), fromp.penalty(), rtol=1e-10, atol=0)
    for a, b in zip(*(torch.autograd.grad(m.penalty(), weights) for m in (l2, fromp)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-12)


def shift(model):
    """Move the outputs of the three heads by 1, 3 and 9, which their softmax does not see."""
    with torch.no_grad():
        model[2].bias += torch.tensor([1.0, 1.0, 3.0, 3.0, 9.0, 9.0])


def test_functional_l2_holds_the_outputs_of_each_head():
    method = FunctionalL2(network(), Categorical(), memory=4, strength=0.7, seed=0)
    for task in range(2):
        method.end_task(data(task), HEADS[task])
    shift(method.model)
    assert method.penalty().item() == pytest.approx(0.7 * 4 * 2 * (1.0 + 9.0))


def test_replay_expects_the_mean_loss_over_all_memory():
    """Over its points, not over its tasks: these have unequal memories."""
    method = Replay(network(), Categorical(), memory=0, batch_size=500, strength=2.0, seed=0)
    for task, method.memory_size in enumerate([2, 4, 12]):
        method.end_task(data(task), HEADS[task])
    every = [(m.inputs, m.labels, m.head) for m in method.memories]
    mean = sum(method.penalty().item() for _ in range(40)) / 40
    assert [len(m) for m in method.memories] == [2, 4, 12]
    assert mean == pytest.approx(2.0 * mean_nll(method.model, method.likelihood, every).item(), rel=0.02)


def test_der_holds_the_outputs_where_they_were_stored_and_replays_labels_of_another_draw():
    method = DERpp(network(), Categorical(), memory=4, batch_size=64, strength=2.0, logit_strength=0.5, seed=0)
    for task in range(2):
        method.end_task(data(task), HEADS[task])
        shift(method.model)  # the first head by 2 in all, the second by 3
    state = method._generator.get_state()
    first, second = (method.draw(64, method.outputs) for _ in range(2))
    method._generator.set_state(state)
    distances = sum(len(stored) * {HEADS[0]: 4.0, HEADS[1]: 9.0}[head] for (_, _, head), stored in first) / 64
    labelled = mean_nll(method.model, method.likelihood, [part for part, _ in second]).item()
    assert method.penalty().item() == pytest.approx(0.5 * distances + 2.0 * labelled, rel=1e-10)
