"""`penalty()` never waits for a device: on one that holds no values, reads fail, as do indices of the CPU."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fromp import (
    FROMP,
    Categorical,
    Composed,
    Divergence,
    FullKernel,
    HalfKernel,
    Hold,
    IdentityKernel,
    Logits,
    Means,
    MixedPast,
    PresentBatch,
    Remembered,
    Unlabelled,
)
from fromp.derivatives.runaway import BETWEEN_LOOKS
from fromp.foundation import inputs

EMPTY = torch.device("meta")


@pytest.fixture(autouse=True)
def no_autocast(monkeypatch):
    """Such a device has none."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)


class Waiting(TorchDispatchMode):
    """An error where a tensor goes to the device, or comes from it, and the processor waits until it is there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name
        found = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        if name == "aten::_to_copy" and "device" in kwargs and kwargs["device"] != found[0].device:
            assert kwargs.get("non_blocking"), f"{name} waits for {kwargs['device']}"
        if name in {"aten::index", "aten::index_select", "aten::index_put_"}:
            flat = [i for a in args[1:] for i in (a if isinstance(a, list | tuple) else [a])]
            assert all(i.device == found[0].device for i in flat if isinstance(i, torch.Tensor)), name
        if name == "aten::copy_" and found[0].device != found[1].device:
            assert kwargs.get("non_blocking") or (len(args) > 2 and args[2]), name
        return func(*args, **kwargs)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4))


def end_tasks(reg, heads):
    for task, head in enumerate(heads):
        x = torch.randn(20, 5, generator=torch.Generator().manual_seed(task))
        reg.end_task((x, torch.arange(20) % (len(head) if head else 4)), head=head)
    reg.penalty()  # the first one looks at the weights, once per task
    return reg


def steps(model, penalty):
    """As many as there are between two looks at the value: no value is read, forwards or backwards."""
    with Waiting():
        for _ in range(BETWEEN_LOOKS - 2):
            value = penalty()
            assert value.device == EMPTY
            torch.autograd.grad(value, list(model.parameters()), allow_unused=True)


@pytest.mark.parametrize("heads", [[None] * 3, [[0, 1], [2, 3], [0, 1]]], ids=["single", "heads"])
@pytest.mark.parametrize("options", [{}, {"tasks_per_step": 2}], ids=["all", "drawn"])
@pytest.mark.parametrize("kernel", [FullKernel, HalfKernel, IdentityKernel])
def test_fromp(kernel, options, heads, monkeypatch):
    # What is brought to a device is checked there to be finite, once.
    monkeypatch.setattr(FullKernel, "to", lambda self, dtype, device=None: FullKernel(self.inverse.to(device, dtype)))
    monkeypatch.setattr(
        HalfKernel, "to", lambda k, t, device=None: HalfKernel(k.factor.to(device), k.scale.to(device, t))
    )
    model = network()
    reg = end_tasks(FROMP(model, Categorical(), memory_size=8, jitter=1e-2, kernel=kernel, **options), heads)
    model.to(EMPTY)
    reg.to(EMPTY)
    steps(model, reg.penalty)


@pytest.mark.parametrize(
    "hold",
    [
        Hold(Remembered(), Logits(), 1.0),
        Hold(Remembered(6), Means(), 1.0),
        Hold(PresentBatch(), Divergence(2), 1.0),
        Hold(Unlabelled(torch.randn(9, 5), 4), Logits(), 1.0),
    ],
    ids=lambda hold: type(hold.context).__name__,
)
@pytest.mark.parametrize("heads", [[None] * 2, [[0, 1], [2, 3]]], ids=["single", "heads"])
def test_composed(hold, heads):
    check_functional(Composed(network(), Categorical(), [hold], memory_size=8), heads)


def test_mixed_past():
    check_functional(MixedPast(network(), Categorical(), memory_size=8), [[0, 1], [2, 3]])


def check_functional(reg, heads):
    x = torch.randn(7, 5)
    for head in heads:
        data = torch.randn(20, 5), torch.arange(20) % (len(head) if head else 4)
        reg.end_task(data, head=head)
        reg.penalty(x)
    reg.model.to(EMPTY)
    reg._teacher.to(EMPTY)
    reg._past.pools = [
        replace(
            pool,
            inputs=inputs.move(pool.inputs, EMPTY),
            labels=pool.labels.to(EMPTY),
            columns=None if pool.columns is None else pool.columns.to(EMPTY),
            old=pool.old.to(EMPTY),
        )
        for pool in reg._past.pools
    ]
    reg._place = reg._place_of_model()
    x = x.to(EMPTY)
    steps(reg.model, lambda: reg.penalty(x))


def test_a_wait_would_be_seen():
    model, x = network().to(EMPTY), torch.randn(3, 5, device=EMPTY)
    with pytest.raises(RuntimeError, match="meta"), Waiting():
        float(model(x).sum())
    with pytest.raises(AssertionError, match="index"), Waiting():
        model(x)[torch.arange(2)]
    with pytest.raises(AssertionError, match="waits"), Waiting():
        torch.arange(2).to(EMPTY)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("options", [{}, {"tasks_per_step": 2}], ids=["all", "drawn"])
def test_on_a_graphics_processor(options):
    model = network().cuda()
    reg = FROMP(model, Categorical(), memory_size=8, **options)
    for task in range(3):
        x = torch.randn(20, 5, generator=torch.Generator().manual_seed(task))
        reg.end_task((x, torch.arange(20) % 4))
    reg.penalty().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2 * BETWEEN_LOOKS):
            reg.penalty().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
