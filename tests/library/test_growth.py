"""Heads that gain outputs: as if all of them had been there from the start."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fromp import FROMP, Categorical, FrompError, IdentityKernel
from fromp.foundation.errors import CheckpointError
from fromp.growth import extended, has_grown

OLD, NEW = 3, 5


def network(outputs):
    """The same weights whatever the number of outputs, of which those of more are beyond those of fewer."""
    torch.manual_seed(0)
    trunk = [nn.Linear(5, 6), nn.Tanh()]
    rows = torch.randn(NEW, 6), torch.randn(NEW)
    head = nn.Linear(6, outputs)
    with torch.no_grad():
        head.weight.copy_(rows[0][:outputs])
        head.bias.copy_(rows[1][:outputs])
    return nn.Sequential(*trunk, head).double()


def grow(model, copied=True):
    """The common recipe: a larger layer, the rows copied."""
    old, new = model[2], network(NEW)[2]
    with torch.no_grad():
        if copied:
            new.weight[:OLD], new.bias[:OLD] = old.weight, old.bias
        else:
            new.weight += 1
    model[2] = new


def task(seed, classes):
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(seed)).double()
    return x, torch.arange(40) % classes


def train(model, reg, head=None, steps=5):
    x, y = task(2, NEW if head is None else len(head))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        f = model(x) if head is None else model(x)[:, head]
        (cross_entropy(f, y) + reg.penalty()).backward()
        optimizer.step()
    reg.end_task((x, y), head=head)


def assert_equal(one, other):
    """Two regularisers: precision, penalty and its gradients at other weights, predictions."""
    for name, value in other.precision.items():
        torch.testing.assert_close(one.precision[name], value, rtol=1e-9, atol=1e-12)
    found = []
    for reg in (one, other):
        with torch.no_grad():
            for p in reg.model.parameters():
                p += 0.05
        reg.model.zero_grad()
        penalty = reg.penalty()
        penalty.backward()
        grads = [p.grad for p in reg.model.parameters()]
        found.append([penalty.detach(), *grads, *reg.predict(task(9, 2)[0]), torch.tensor(reg.drift())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kernel", [{}, {"kernel": IdentityKernel}], ids=["full", "identity"])
@pytest.mark.parametrize("head", [None, [3, 4]], ids=["shared", "its own outputs"])
@pytest.mark.parametrize("stop", [False, True], ids=["one process", "saved between"])
def test_a_head_that_grows_equals_one_with_all_outputs(head, kernel, stop, tmp_path):
    growing, whole = network(OLD), network(NEW)
    regs = [FROMP(m, Categorical(), memory_size=8, jitter=1e-3, **kernel) for m in (growing, whole)]
    regs[0].end_task(task(1, OLD))
    regs[1].end_task(task(1, OLD), head=range(OLD))
    if stop:
        regs[0].save(tmp_path)
    grow(growing)
    if stop:
        regs[0] = FROMP.load(tmp_path, growing, **kernel)
    assert regs[0].penalty().item() == pytest.approx(0, abs=1e-18)
    for model, reg in zip((growing, whole), regs, strict=True):
        train(model, reg, head)
    assert regs[0].memories[0].head == (0, 1, 2)
    assert_equal(*regs)
    regs[0].save(tmp_path)
    assert FROMP.load(tmp_path, growing, **kernel).penalty().item() == regs[0].penalty().item() > 0


def test_outputs_come_while_a_task_is_learned():
    growing, whole = network(OLD), network(NEW)
    regs = [FROMP(m, Categorical(), memory_size=8, jitter=1e-3) for m in (growing, whole)]
    regs[0].end_task(task(1, OLD))
    regs[1].end_task(task(1, OLD), head=range(OLD))
    for model, reg in zip((growing, whole), regs, strict=True):
        reg.penalty()
        with torch.no_grad():
            model[0].weight += 0.1
        if model is growing:
            grow(model)
        assert reg.penalty().item() > 0
    assert_equal(*regs)


def test_what_was_known_stays_and_new_rows_start_from_the_prior():
    model = network(OLD)
    reg = FROMP(model, Categorical(), memory_size=8, prior_precision=0.25)
    reg.end_task(task(1, OLD))
    before = dict(reg.precision)
    grow(model)
    reg.penalty()
    for name in ("2.weight", "2.bias"):
        assert torch.equal(reg.precision[name][:OLD], before[name])
        assert bool((reg.precision[name][OLD:] == 0.25).all())
    assert torch.equal(reg.precision["0.weight"], before["0.weight"])


@pytest.mark.parametrize("call", [lambda reg: reg.penalty(), lambda reg: reg.end_task(task(2, NEW))])
def test_rows_that_were_not_copied_are_named(call):
    model = network(OLD)
    reg = FROMP(model, Categorical(), memory_size=8)
    reg.end_task(task(1, OLD))
    grow(model, copied=False)
    with pytest.raises(
        FrompError, match=r"'2\.weight' has grown, and its first 3 rows are not those .*new\[:3\] = old"
    ):
        call(reg)
    assert len(reg.memories) == 1
    assert reg.precision["2.weight"].shape == (OLD, 6)


def test_rows_that_training_has_moved_are_taken():
    model = network(OLD)
    reg = FROMP(model, Categorical(), memory_size=8)
    reg.end_task(task(1, OLD))
    grow(model)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.01
    assert reg.penalty().item() > 0
    reg.end_task(task(2, NEW))
    assert [memory.head for memory in reg.memories] == [(0, 1, 2), None]


def test_sites_whose_heads_differ_are_merged(tmp_path):
    model, other = network(OLD), network(OLD)
    regs = [FROMP(m, Categorical(), memory_size=8) for m in (model, other)]
    for seed, reg in enumerate(regs):
        reg.end_task(task(seed, OLD))
    grow(model)
    regs[0].merge(regs[1])
    assert [memory.head for memory in regs[0].memories] == [(0, 1, 2)] * 2
    assert regs[0].precision["2.weight"].shape == (NEW, 6)


def test_other_changes_of_shape_are_refused():
    model = network(OLD)
    reg = FROMP(model, Categorical(), memory_size=8)
    reg.end_task(task(1, OLD))
    model[2] = nn.Linear(6, 2).double()
    with pytest.raises(FrompError, match="has 2 outputs, it had 3"):
        reg.penalty()
    with pytest.raises(
        CheckpointError, match=r"'2\.weight' is \[2, 6\], in the remembered model it was \[3, 6\].*gain rows"
    ):
        reg.end_task(task(2, 2))


def test_a_shape_that_has_grown():
    assert has_grown([5, 6], [3, 6])
    assert has_grown([5], [3])
    for then in ([5, 6], [3, 7], [6, 6], [3], [], None, ["3", 6], [0, 6]):
        assert not has_grown([5, 6], then)
    known = torch.ones(2, 3)
    assert extended(known, torch.zeros(2, 3), 7.0) is known
    assert extended(known, torch.zeros(3, 3), 7.0).tolist() == [[1] * 3, [1] * 3, [7] * 3]
