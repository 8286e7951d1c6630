"""Common checks over every registered method: nothing here knows which one it is looking at."""

import gc
import weakref

import pytest
import torch
from torch import nn

from fromp.derivatives.model import evaluating
from fromp.foundation.examples import TensorExamples
from fromp.foundation.state import flatten, unflatten
from fromp.lab.engine.fit import accuracy
from fromp.lab.engine.run import build_method
from fromp.lab.methods import METHODS
from fromp.lab.results.plan import comparison

HEADS = [(0, 1), (2, 3), (4, 5)]


def network(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 6))
    model[1].eval()  # a user may keep some modules in their own mode
    return model


def normalised(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.LayerNorm(8), nn.Linear(8, 6)
    )


WITH_A_PRIOR = {"vcl", "vcl-coreset", "vcl-memorable", "frcl-random", "frcl-trace"}  # on the weights, from the start


def make(name, model, seed=0):
    plan = comparison("toy", ["fromp", name], {"memory": 6, "tau": 1.0, "tasks": len(HEADS)})[name]
    return build_method(plan, model, seed, kept=lambda task: (torch.arange(task, task + 6), torch.zeros(6)))


def data(task):
    generator = torch.Generator().manual_seed(task)
    return TensorExamples(torch.randn(30, 3, generator=generator) + task, torch.arange(30) % 2)


def fit(method, task, steps=20):
    training = method.begin_task(data(task), HEADS[task], [(data(k), HEADS[k]) for k in range(task)])
    optimizer = torch.optim.Adam(method.parameters(), 1e-2)
    losses = []
    for step in range(steps if training else 0):
        batch = [(*examples.take(torch.arange(step % 3, len(examples), 3)), head) for examples, head in training]
        optimizer.zero_grad()
        loss = sum(method.loss(batch))
        loss.backward()
        optimizer.step()
        method.after_step()
        losses.append(loss.item())
    method.end_task(data(task), HEADS[task])
    return losses


@pytest.mark.parametrize("name", METHODS)
def test_costs_nothing_before_the_first_task(name):
    method = make(name, network())
    if name in WITH_A_PRIOR:
        pytest.skip("it has a prior from the start")
    penalty = method.penalty()
    assert penalty.shape == ()
    assert penalty.item() == 0
    penalty.backward()


@pytest.mark.parametrize("name", METHODS)
def test_finite_and_differentiable_after_each_task(name):
    method = make(name, network())
    for task in range(3):
        losses = fit(method, task)
        assert all(torch.isfinite(torch.tensor(losses)))
        penalty = method.penalty()
        assert torch.isfinite(penalty)
        assert penalty.item() >= 0
        with torch.no_grad():
            for w in method.model.parameters():
                w.add_(0.1 * torch.randn(w.shape, generator=torch.Generator().manual_seed(task)).to(w))
        parameters = method.parameters()
        for parameter in parameters:
            parameter.grad = None
        penalty = method.penalty()  # away from where the task ended, where it may be zero with its gradient
        penalty.backward()
        slopes = torch.cat([torch.zeros(1)] + [p.grad.flatten() for p in parameters if p.grad is not None])
        assert torch.isfinite(slopes).all()
        assert (penalty.item() > 0) == bool((slopes != 0).any())


@pytest.mark.parametrize("name", METHODS)
def test_leaves_the_callers_things_alone(name):
    model = network()
    method = make(name, model)
    fit(method, 0)
    fit(method, 1)
    method.begin_task(data(2), HEADS[2], [(data(k), HEADS[k]) for k in range(2)])
    model.zero_grad()
    modes = [module.training for module in model.modules()]
    weights = [p.detach().clone() for p in model.parameters()]
    flags = [p.requires_grad for p in model.parameters()]
    attributes, hooks = set(vars(model)), len(model._forward_hooks)
    random, threads = torch.get_rng_state(), torch.get_num_threads()
    method.penalty()
    method.end_task(data(2), HEADS[2])
    accuracy(method, data(2), HEADS[2], 2)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert [p.requires_grad for p in model.parameters()] == flags
    assert all(p.grad is None for p in model.parameters())
    assert (set(vars(model)), len(model._forward_hooks)) == (attributes, hooks)
    assert torch.equal(random, torch.get_rng_state())
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("name", METHODS)
def test_a_module_in_two_places_keeps_its_weights(name):
    torch.manual_seed(0)
    shared = nn.Linear(6, 6)
    model = nn.Sequential(nn.Linear(3, 6), shared, nn.Tanh(), shared)
    before = list(map(id, model.parameters()))
    method = make(name, model)
    fit(method, 0)
    fit(method, 1)
    assert list(map(id, model.parameters())) == before


@pytest.mark.parametrize("name", METHODS)
def test_lets_go_of_the_past(name):
    method = make(name, network())
    x, y = data(0).x.clone(), data(0).y.clone()
    examples = TensorExamples(x, y)
    method.begin_task(examples, HEADS[0], [])
    watches = [weakref.ref(examples), weakref.ref(x)]
    method.end_task(examples, HEADS[0])
    del examples, x
    gc.collect()
    assert [watch() for watch in watches] == [None, None]


@pytest.mark.parametrize("name", METHODS)
def test_same_seed_same_numbers(name):
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        method = make(name, network())
        runs.append([fit(method, task) for task in range(3)])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("network", [network, normalised])
@pytest.mark.parametrize("name", METHODS)
def test_a_restored_method_goes_on_as_if_nothing_had_happened(name, network):
    one = make(name, network())
    fit(one, 0)
    fit(one, 1)
    tensors, tree = flatten(one.state_dict())
    other = make(name, network(seed=5))
    other.model.load_state_dict(one.model.state_dict())
    other.load_state_dict(unflatten({k: v.clone() for k, v in tensors.items()}, tree))
    for task in range(2):
        x, _ = data(task).take(torch.arange(30))
        said = []
        for method in (one, other):
            with evaluating(method.model):
                said.append(method.predict_outputs(x, HEADS[task], task))
        assert torch.equal(*said)
    torch.manual_seed(3)
    first = fit(one, 2)
    torch.manual_seed(3)
    assert fit(other, 2) == first
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", METHODS)
def test_a_state_is_brought_to_the_models_device(name):
    """There is one device here, so it is asked whether every tensor but the random states has been sent to it."""
    method = make(name, network())
    fit(method, 0)
    fit(method, 1)
    tensors, tree = flatten(method.state_dict())
    sent = set()

    class Elsewhere(torch.Tensor):
        def to(self, device, copy=False):
            sent.add(id(self))
            return self.as_subclass(torch.Tensor)

        def cpu(self):  # of random states and indices, which stay where they are
            sent.add(id(self))
            return self.as_subclass(torch.Tensor)

    marked = {name: t.clone().as_subclass(Elsewhere) for name, t in tensors.items()}
    names = {id(t): name for name, t in marked.items()}
    method.load_state_dict(unflatten(marked, tree))
    left = {name for number, name in names.items() if number not in sent}
    # VCL's deviations are copied into the parameters that there are.
    assert not {name for name in left if not name.startswith("log_deviation/")}
