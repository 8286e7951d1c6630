"""The penalty in other people's training loops."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fromp import FROMP, Bernoulli, Categorical, FullKernel, HalfKernel, IdentityKernel
from fromp.foundation.state import flatten


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 4))


def task(seed, classes=2, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(60) % classes
    x = torch.randn(60, 4, generator=generator) * 0.3 + shift
    x[:, seed % 4] += 2.0 * (y - 0.5)
    return x, y


def remembered(**options):
    model = network()
    reg = FROMP(model, Categorical(), tau=2.0, memory_size=10, prior_precision=1e-2, jitter=1e-2, **options)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        x, y = task(0)
        (F.cross_entropy(model(x)[:, :2], y) + reg.penalty()).backward()
        optimizer.step()
    optimizer.zero_grad()
    reg.end_task(task(0), head=[0, 1])
    return model, reg


@pytest.mark.parametrize(
    ("make", "clip"),
    [
        (lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True), 1.0),
        (lambda p: torch.optim.AdamW(p, 1e-2), 1.0),
        (lambda p: torch.optim.RMSprop(p, 1e-2), None),
        (lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3), None),  # a line of its own needs whole gradients
    ],
    ids=["sgd", "adamw", "rmsprop", "lbfgs"],
)
def test_any_optimiser_with_a_schedule_and_clipping(make, clip):
    """The old task stays where plain training would lose it, and the new one is learned."""
    drift = {}
    for penalised in (True, False):
        model, reg = remembered()
        optimizer = make(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 40, 0.5)
        x, y = task(1)
        model.eval()  # no dropout: LBFGS needs the same function twice

        def closure(model=model, reg=reg, optimizer=optimizer, x=x, y=y, penalised=penalised):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x)[:, 2:], y) + (reg.penalty() if penalised else 0)
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            return loss

        for _ in range(80):
            optimizer.step(closure)
            scheduler.step()
        drift[penalised] = reg.drift()[0]
        assert float((model(x)[:, 2:].argmax(1) == y).float().mean()) > 0.95
    assert drift[True] < 0.3 * drift[False]


def test_gradients_accumulate():
    model, reg = remembered()
    with torch.no_grad():
        model[0].weight += 0.05
    reg.penalty().backward()
    once = [p.grad.clone() for p in model.parameters()]
    (reg.penalty() / 2).backward()
    for p, g in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 1.5 * g)


def test_frozen_parameters_get_no_gradient_and_stay_in_the_kernel():
    model, reg = remembered()
    model[0].weight.requires_grad_(False)
    with torch.no_grad():
        model[3].weight += 0.05
    reg.penalty().backward()
    assert model[0].weight.grad is None
    assert model[3].weight.grad is not None
    reg.end_task(task(1), head=[2, 3])  # the frozen weight keeps its share of the precision
    assert set(reg.precision) == {name for name, _ in model.named_parameters()}


def test_unfreezing_starts_from_the_prior():
    model = network()
    model[0].requires_grad_(False)
    reg = FROMP(model, Categorical(), memory_size=10, jitter=1e-2)
    reg.end_task(task(0), head=[0, 1])
    assert set(reg.precision) == {"3.weight", "3.bias"}
    model[0].requires_grad_(True)
    reg.end_task(task(1), head=[2, 3])
    assert set(reg.precision) == {"0.weight", "0.bias", "3.weight", "3.bias"}
    assert float(reg.precision["0.weight"].min()) >= reg.prior_precision


def test_parameter_groups():
    model, reg = remembered()
    groups = [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[3].parameters(), "lr": 1e-2}]
    optimizer = torch.optim.Adam(groups)
    x, y = task(1)
    for _ in range(3):
        optimizer.zero_grad()
        (F.cross_entropy(model(x)[:, 2:], y) + reg.penalty()).backward()
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        moved = [float((p.detach() - q).abs().max()) for p, q in zip(model.parameters(), before, strict=True)]
        assert max(moved[:2]) <= 1.01e-3 < min(moved[2:]) <= 1.01e-2
    assert reg.penalty().item() > 0


def test_shared_weights():
    """A weight used twice is held by both of its uses: the penalty's gradient is the one of its definition."""
    torch.manual_seed(0)
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    reg = FROMP(model, Categorical(), tau=1.0, memory_size=8, jitter=1e-2, kernel=IdentityKernel)
    reg.end_task(task(0))
    memory = reg.memories[0]
    with torch.no_grad():
        before = model(memory.inputs).softmax(-1)
        shared.weight += 0.1
    expected = torch.autograd.grad(0.5 * (model(memory.inputs).softmax(-1) - before).square().sum(), shared.weight)
    torch.testing.assert_close(torch.autograd.grad(reg.penalty(), shared.weight), expected)


def test_without_gradients_it_is_a_number():
    model, reg = remembered()
    with torch.no_grad():
        model[0].weight += 0.05
        assert not reg.penalty().requires_grad
    assert reg.penalty().requires_grad


def test_dropout_is_off_on_memory_and_back_on_afterwards():
    model, reg = remembered()
    model.train()
    with torch.no_grad():
        model[0].weight += 0.05
    values = {reg.penalty().item() for _ in range(5)}
    assert len(values) == 1
    assert model[2].training


@pytest.mark.parametrize("options", [{}, {"kernel": IdentityKernel}], ids=["kernel", "identity"])
def test_memory_in_several_passes_equals_one(options, monkeypatch):
    from fromp.derivatives import budget as module

    values = {}
    for bytes_ in (module.PASS_BYTES, 1):
        monkeypatch.setattr(module, "PASS_BYTES", bytes_)
        model, reg = remembered(**options)
        reg.end_task(task(1), head=[2, 3])
        reg.end_task(task(2, classes=3), head=[0, 1, 2])
        with torch.no_grad():
            model[0].weight += 0.05
        penalty = reg.penalty()
        penalty.backward()
        values[bytes_] = (penalty.detach(), *[p.grad.clone() for p in model.parameters()], len(reg._prior.blocks))
    few, many = values.values()
    assert (few[-1], many[-1]) == (2, 3)  # two shapes of head; one task a pass
    for a, b in zip(few[:-1], many[:-1], strict=True):
        torch.testing.assert_close(a, b)


def test_bernoulli_with_one_output():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    reg = FROMP(model, Bernoulli(), memory_size=8, jitter=1e-3)
    x, y = task(0)
    reg.end_task((x, y))
    assert sorted(reg.memories[0].labels.tolist()) == [0] * 4 + [1] * 4
    mean, variance = reg.predict(x)
    assert mean.shape == variance.shape == (60, 1)
    assert bool((variance > mean * (1 - mean) - 1e-6).all())


def test_a_copied_model_is_not_needed():
    """The prior is numbers, not a copy of the network: the model may be moved and changed freely."""
    model, reg = remembered()
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert reg.penalty().item() > 0
    model.load_state_dict(before)
    assert reg.penalty().item() == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("kernel", [FullKernel, HalfKernel, IdentityKernel])
def test_memory_is_computed_with_autocast_off(kernel):
    """Nothing is computed in bfloat16 here: where a CPU only announces it, that would end the process."""
    model, reg = remembered(kernel=kernel)
    seen = []
    model.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    with torch.no_grad():
        model[0].weight += 0.05
    _, plain = copy.deepcopy((model, reg))
    plain.end_task(task(1), head=[2, 3])
    expected = plain.penalty()
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        reg.penalty().backward()
        reg.end_task(task(1), head=[2, 3])
        reg.drift()
        reg.predict(task(1)[0])
        assert torch.is_autocast_enabled("cpu")
        assert torch.equal(reg.penalty(), expected)
    assert len(seen) > 5
    assert not any(seen)
    for mine, its in zip(flatten(reg.state_dict())[0].values(), flatten(plain.state_dict())[0].values(), strict=True):
        assert torch.equal(mine, its)
