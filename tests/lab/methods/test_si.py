"""Synaptic intelligence against its definition."""

import math

import pytest
import torch
from oracles.small import copies, data, move, network
from torch import nn

from fromp import Categorical
from fromp.foundation.examples import TensorExamples
from fromp.lab.benchmarks.training import Training
from fromp.lab.engine.fit import Fit
from fromp.lab.methods.si import SI, SIMethod


@pytest.mark.parametrize("lr", [1e-2, 1e-3])
def test_si_integrates_the_decrease_of_the_loss(lr):
    """Its sum over weights is the loss before minus the loss after, up to O(lr), whatever the penalty and the clip."""
    model = network(outputs=2)
    si = SI(model, Categorical(), strength=5.0, damping=1e-3)
    method = SIMethod(si)
    examples = TensorExamples(*data(0))
    decreases = []
    for task in range(2):
        method.begin_task(examples, None, [])
        batch = [(*data(task), None)]
        optimizer = torch.optim.SGD(model.parameters(), lr)
        before = method.data_loss(batch).item()
        for _ in range(round(0.5 / lr)):
            optimizer.zero_grad()
            sum(method.loss(batch)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
            method.after_step()
        decreases.append(before - method.data_loss(batch).item())
        path = sum(p.sum() for p in si.path.values()).item()
        assert abs(path - decreases[-1]) < 0.5 * lr * abs(decreases[-1])
        method.end_task(examples)
    assert decreases[0] > 0.03


def test_si_weighs_each_weight_by_its_paths_and_never_negatively():
    si = SI(network(outputs=2), Categorical(), strength=5.0, damping=0.1)
    method = SIMethod(si)
    importance, weights = dict.fromkeys(si.path, 0.0), dict(method.model.named_parameters())
    for task in range(2):
        method.begin_task(TensorExamples(*data(task)), None, [])
        before = copies(weights)
        move(method.model, 0.3)
        for place, (name, path) in enumerate(si.path.items()):
            path += torch.sin(torch.arange(path.numel()).double() + place + task).reshape(path.shape)
            importance[name] += path.clamp_min(0) / ((weights[name] - before[name]).square() + 0.1)
        method.end_task(data(task))
        assert method.penalty().item() == 0
    before = copies(weights)
    move(method.model, 0.2)
    expected = sum(5.0 * (importance[name] * (w - before[name]).square()).sum() for name, w in weights.items())
    torch.testing.assert_close(method.penalty(), expected, rtol=1e-10, atol=0)


def test_si_leaves_value_and_gradient_of_the_loss_as_they_are_and_follows_each_weight():
    si = SI(network(outputs=2), Categorical(), strength=5.0, damping=1e-3)
    method = SIMethod(si)
    batch = [(*data(0), None)]
    weights = list(method.model.parameters())
    plain = method.data_loss(batch)
    ours = method.loss(batch).data
    assert math.isclose(plain.item(), ours.item(), rel_tol=1e-14)
    slopes = torch.autograd.grad(plain, weights)
    for a, b in zip(slopes, torch.autograd.grad(ours, weights), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    before = [w.detach().clone() for w in weights]
    move(method.model, 0.3)
    method.after_step()
    for path, slope, w, then in zip(si.path.values(), slopes, weights, before, strict=True):
        torch.testing.assert_close(path, -slope * (w - then).detach(), rtol=1e-12, atol=1e-14)


def test_si_follows_a_layer_that_is_frozen_for_a_while():
    model = network(outputs=2)
    model[0].requires_grad_(False)
    si = SI(model, Categorical(), strength=5.0, damping=1e-3)
    method = SIMethod(si)
    of_layer = []
    for task, frozen in enumerate([True, False, True]):
        model[0].requires_grad_(not frozen)
        for _ in Fit(
            method,
            method.begin_task(TensorExamples(*data(task)), None, []),
            Training(epochs=2, batch_size=4, lr=1e-2),
            seed=0,
        ).steps():
            pass
        method.end_task(data(task))
        of_layer.append(si.importance.get("0.weight", torch.zeros(1)).sum().item())
    assert of_layer[0] == 0
    assert of_layer[1] == of_layer[2] > 0
    assert si.importance.keys() == dict(model.named_parameters()).keys()
    before = {name: w.detach().clone() for name, w in model.named_parameters()}
    move(model, 0.3)
    moved = {name: (w - before[name]).square() for name, w in model.named_parameters()}
    expected = 5.0 * sum((si.importance[name] * square).sum() for name, square in moved.items())
    assert math.isclose(method.penalty().item(), expected.item(), rel_tol=1e-12)


def test_si_in_a_loop_of_ones_own_is_the_same():
    """`after_step` finds the gradient of the data loss by itself, if nothing has clipped it."""
    runs = []
    for own in (True, False):
        model = network(outputs=2)
        si = SI(model, Categorical(), strength=5.0, damping=1e-3)
        method = SIMethod(si)
        for task in range(2):
            x, y = data(task)
            optimizer = torch.optim.Adam(model.parameters(), 1e-2)
            for _ in range(20):
                plain = nn.functional.cross_entropy(model(x), y)
                loss = plain + si.penalty() if own else sum(method.loss([(x, y, None)]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                (si if own else method).after_step()
            si.end_task((x, y))
        runs.append([*si.importance.values(), *model.parameters()])
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_the_trainer_tells_si_of_every_step():
    torch.manual_seed(0)
    si, (x, y) = SI(network(2), Categorical(), 1.0, 1e-3), data(0)
    method = SIMethod(si)
    before = Categorical().nll(method.model(x), y).mean().item()
    training = method.begin_task(TensorExamples(x, y), None, [])
    for _ in Fit(method, training, Training(epochs=200, batch_size=len(y), lr=1e-4), seed=0).steps():
        pass
    decrease = before - Categorical().nll(method.model(x), y).mean().item()
    assert sum(float(path.sum()) for path in si.path.values()) == pytest.approx(decrease, rel=0.02)
    assert decrease > 1e-3
