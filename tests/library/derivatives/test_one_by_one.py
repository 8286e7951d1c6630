"""The penalty's gradient block by block equals that of the whole, in the memory of one block."""

import pytest
import torch
from torch import nn

from fromp import FROMP, Categorical
from fromp.derivatives import one_by_one


def held(tasks=4):
    """Blocks of a few points each, and weights that have moved."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 4), nn.Linear(4, 4)).double()
    reg = FROMP(model, Categorical(), memory_size=12, jitter=1e-2)
    for task in range(tasks):
        x = torch.randn(40, 5, dtype=torch.double, generator=torch.Generator().manual_seed(task))
        reg.end_task((x, torch.arange(40) % 4))
    reg._prior = type(reg._prior)(reg._prior.anchors, reg.likelihood, 12)
    assert len(reg._prior.blocks) == tasks
    with torch.no_grad():
        for w in model.parameters():
            w += 0.1 * torch.randn_like(w)
    model[3].bias.requires_grad_(False)
    return reg, [w for w in model.parameters() if w.requires_grad]


def whole(reg):
    parts = [block.squared_distance(reg.model.eval(), reg.likelihood, reg.ranks) for block in reg._prior.blocks]
    return 0.5 * reg.tau * torch.stack(parts).sum()


def test_the_gradient_is_that_of_the_whole():
    reg, weights = held()
    expected = torch.autograd.grad(whole(reg), weights)
    reg.model.train()
    found = 3 * reg.penalty()
    assert float(found) == pytest.approx(3 * float(whole(reg)), rel=1e-12)
    reg.model.train()
    for g, e in zip(torch.autograd.grad(found, weights), expected, strict=True):
        torch.testing.assert_close(g, 3 * e, rtol=1e-12, atol=1e-14)
    assert all(module.training for module in reg.model.modules())


def test_second_derivatives():
    reg, weights = held()
    vectors = [torch.randn_like(w) for w in weights]

    def product(value):
        g = torch.autograd.grad(value, weights, create_graph=True)
        return torch.autograd.grad(sum((a * v).sum() for a, v in zip(g, vectors, strict=True)), weights)

    for found, expected in zip(product(reg.penalty()), product(whole(reg)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_second_derivatives_after_the_weights_have_moved_are_refused():
    reg, weights = held()
    value = reg.penalty()
    with torch.no_grad():
        weights[0] += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(value, weights, create_graph=True)


def test_without_gradients_there_is_no_graph():
    reg, weights = held()
    with torch.no_grad():
        value = reg.penalty()
        moved = 0.5 * reg.tau * one_by_one.total([lambda: (weights[0] ** 2).sum()] * 2, weights)
    assert not moved.requires_grad
    assert float(value) == pytest.approx(float(whole(reg)), rel=1e-12)


def test_only_one_part_is_alive_at_a_time():
    """The graphs of the other parts are gone: counted by what autograd keeps."""
    weight, alive, most = torch.ones(1000, requires_grad=True), 0, 0

    class Kept:
        def __init__(self, t):
            nonlocal alive, most
            self.t, alive = t, alive + 1
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            alive -= 1

    def part():
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.t):
            return weight.sin().cos().exp().sum()

    one_by_one.total([part], [weight]).backward()
    single, most = most, 0
    one_by_one.total([part] * 10, [weight]).backward()
    assert 0 < most <= 2 * single
    assert alive == 0
