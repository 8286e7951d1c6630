"""What is refused or said: wrong settings, wrong files, the wrong model, saturated outputs, half precision."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch
from reliability import poison
from reliability.damage import damaged
from torch import nn

from fromp import FROMP, Categorical, FrompError, HalfKernel, IdentityKernel, MixedPast
from fromp.derivatives import watch
from fromp.foundation import storage
from fromp.foundation.errors import FrompWarning
from fromp.foundation.state import check_finite


def network(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def data(task=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(task)
    return torch.randn(40, 4, generator=generator).to(dtype), torch.arange(40) % 3


def taught(tasks=2, **options):
    model = network()
    reg = FROMP(model, Categorical(), memory_size=6, **options)
    for task in range(tasks):
        reg.end_task(data(task))
    return model, reg


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tau", -1.0), ("tau", math.nan), ("tau", "0.5"), ("tau", None), ("memory_size", 6.0), ("memory_size", 0),
        ("memory_size", True), ("tasks_per_step", 0), ("tasks_per_step", 1.5), ("prior_precision", 0.0),
        ("jitter", math.inf), ("tau", 10**30), ("memory_budget", 0), ("memory_budget", -1.0),
    ],
)  # fmt: skip
def test_settings_are_checked_when_they_are_set(name, value):
    _, reg = taught(0)
    before = getattr(reg, name)
    with pytest.raises(FrompError, match=f"{name}={value} must be"):
        setattr(reg, name, value)
    assert getattr(reg, name) == before
    with pytest.raises(FrompError, match=f"{name}={value} must be"):
        FROMP(network(), Categorical(), **{name: value})


def test_numbers_of_numpy_and_torch_can_be_saved(tmp_path):
    model = network()
    reg = FROMP(model, Categorical(), tau=np.float32(0.5), memory_size=np.int64(6), jitter=torch.tensor(1e-3))
    reg.end_task(data())
    reg.save(tmp_path)
    again = FROMP.load(tmp_path, model)
    assert (again.tau, again.memory_size) == (0.5, 6)
    assert type(again.memory_size) is int


def test_the_model_cannot_be_exchanged():
    _, reg = taught(1)
    with pytest.raises(AttributeError):
        reg.model = network(1)


@pytest.mark.parametrize("head", [[0, math.nan], [0, {}], ["a"], [0, math.inf]])
def test_a_head_of_something_else_than_numbers_is_refused(head):
    _, reg = taught(1)
    with pytest.raises(FrompError, match="is not a list of output indices"):
        reg.end_task(data(1), head=head)
    state = reg.state_dict()
    state["tasks"][0]["memory"]["head"] = head
    with pytest.raises(FrompError, match="is not a list of output indices"):
        reg.load_state_dict(state)


def test_loading_into_an_untrained_network_is_said(tmp_path):
    model, reg = taught()
    reg.save(tmp_path)
    with pytest.warns(FrompWarning, match="weights are not those that it had when this memory was saved"):
        FROMP.load(tmp_path, network(5)).penalty()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FROMP.load(tmp_path, model).penalty()
        FROMP.load(tmp_path, copy.deepcopy(model).double()).penalty()
        later = network(5)
        again = FROMP.load(tmp_path, later)
        later.load_state_dict(model.state_dict())  # the weights may come after the memory
        assert again.penalty().item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("copied", [True, False])
def test_a_copy_that_is_trained_instead_is_said(monkeypatch, copied):
    monkeypatch.setattr(watch, "STILL_PENALTIES", 20)
    model, reg = taught()
    trained = copy.deepcopy(model) if copied else model
    optimizer = torch.optim.SGD(trained.parameters(), 1e-3)
    x, y = data(2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(40):
            optimizer.zero_grad()
            (nn.functional.cross_entropy(trained(x), y) + reg.penalty()).backward()
            optimizer.step()
    assert [str(w.message)[:20] for w in said] == (["20 penalties were co"] if copied else [])


def test_saturated_outputs_are_said():
    model = network()
    with torch.no_grad():
        model[2].weight *= 1e5
    reg = FROMP(model, Categorical(), memory_size=6)
    with pytest.warns(FrompWarning, match=r"certain of all 40 examples \(every score is 0\)"):
        reg.end_task(data())


@pytest.mark.parametrize("head", [None, [0, 1]])
def test_probabilities_in_the_place_of_logits_are_said(head):
    x, y = data()
    y = y if head is None else y % 2
    with pytest.warns(FrompWarning, match="add up to 1 at every example.*Categorical takes logits"):
        FROMP(nn.Sequential(network(), nn.Softmax(-1)), Categorical(), memory_size=6).end_task((x, y), head=head)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for last in (nn.ReLU(), nn.LogSoftmax(-1), nn.Identity()):
            FROMP(nn.Sequential(network(), last), Categorical(), memory_size=6).end_task((x, y), head=head)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kernel", [None, HalfKernel, IdentityKernel])
def test_half_precision_keeps_kernels_and_precision_in_single(tmp_path, dtype, kernel):
    model, exact = network(dtype=dtype), network()
    exact.load_state_dict(model.state_dict())
    options = {} if kernel is None else {"kernel": kernel}
    regs = [FROMP(m, Categorical(), memory_size=6, jitter=1e-2, **options) for m in (model, exact)]
    regs[0].end_task(data(dtype=dtype))
    regs[1].end_task(data())
    assert {value.dtype for value in regs[0].precision.values()} == {torch.float32}
    for name, value in regs[0].precision.items():
        torch.testing.assert_close(value, regs[1].precision[name], rtol=0.1, atol=0.05)
    assert regs[0].penalty().item() == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        for m in (model, exact):
            m[0].weight.mul_(1.25)
    penalty = regs[0].penalty()
    assert penalty.dtype == torch.float32
    penalty.backward()
    assert all(torch.isfinite(w.grad).all() for w in model.parameters())
    regs[0].save(tmp_path)
    assert FROMP.load(tmp_path, model).penalty().item() == pytest.approx(penalty.item(), rel=1e-3)
    regs[0].predict(data(dtype=dtype)[0])


@pytest.mark.parametrize("kernel", [None, HalfKernel, IdentityKernel])
def test_a_damaged_state_is_refused_or_harmless(tmp_path, kernel):
    """With hashes that fit, so that nothing but the values tells: our error, or penalties that are sound."""
    options = {} if kernel is None else {"kernel": kernel}
    model, reg = taught(tasks_per_step=1, **options)
    with torch.no_grad():
        model[0].weight += 0.01
    state, refused, wrong = reg.state_dict(), 0, []
    for number in range(300):
        broken, what = damaged(state, number)
        if broken is None:
            continue
        try:
            storage.write(tmp_path, "fromp", broken)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                again = FROMP.load(tmp_path, model)
                values = [again.penalty().item() for _ in range(3)]
            if not all(math.isfinite(value) and value >= -1e-6 for value in values):
                wrong.append(f"{what}: penalties {values}")
        except FrompError:
            refused += 1
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__} {error}")
    assert not wrong, "\n".join(wrong)
    assert refused > 100


@pytest.mark.parametrize("kernel", [None, HalfKernel, IdentityKernel])
def test_a_mean_whose_distance_overflows_is_refused(tmp_path, kernel):
    """It is finite, and the penalty would be infinite."""
    model, reg = taught(**({} if kernel is None else {"kernel": kernel}))
    state = reg.state_dict()
    state["tasks"][0]["mean"] = state["tasks"][0]["mean"].clone()
    state["tasks"][0]["mean"][1, 5] = 8.7e37
    storage.write(tmp_path, "fromp", state)
    with pytest.raises(FrompError, match="means are too large for any distance"):
        FROMP.load(tmp_path, model)


def test_it_says_what_it_holds():
    _, reg = taught(2)
    said = "FROMP(Sequential, Categorical, tau=0.5, memory_size=6: 2 tasks, 12 points, 1 heads, 0.0 MiB)"
    assert repr(reg) == said
    assert len(reg.memories) == 2


def test_the_tasks_whose_outputs_are_lost_are_named():
    _, reg = taught(2)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reg.model[0].weight[:] = math.nan
        assert reg._lost() == [0, 1]


@pytest.mark.parametrize("kind", [FROMP, MixedPast])
@pytest.mark.parametrize("number", [40, 130, 400])
def test_what_is_not_finite_is_never_kept(kind, number):
    """One operation of `end_task` gives NaN: an error that names where it came out, or nothing that it has touched."""
    model = network()
    reg = kind(model, Categorical(), memory_size=6)
    reg.end_task(data())
    before = poison.snapshot(reg)
    try:
        with poison.Spoiled(number, math.nan):
            reg.end_task(data(1))
    except FrompError:
        assert poison.snapshot(reg) == before
    assert poison.finite(reg)


def test_what_comes_to_nan_is_named():
    with pytest.raises(FrompError, match=r"the end of task 1: 'precision/0.weight' came to NaN or infinity"):
        check_finite({"precision": {"0.weight": torch.tensor([1.0, math.nan])}, "a": 1}, "the end of task 1")
