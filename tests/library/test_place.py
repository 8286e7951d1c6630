"""State under other names, and on other devices and in other types: brought there, or refused by name."""

import pytest
import torch
from torch import nn

from fromp import FROMP, Categorical, CheckpointError, FrompError, HalfKernel, IdentityKernel


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4))


class Module(nn.Module):
    """A model that has become a part of another module."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


def task(seed=1, dtype=torch.float32):
    return torch.randn(40, 5, generator=torch.Generator().manual_seed(seed)).to(dtype), torch.arange(40) % 4


def taught(model, **options):
    reg = FROMP(model, Categorical(), memory_size=8, jitter=1e-2, **options)
    reg.end_task(task())
    return reg


def move(model):
    with torch.no_grad():
        for p in model.parameters():
            p += 0.05


@pytest.mark.parametrize("saved", ["bare", "inner"])
def test_a_prefix_is_given_once(tmp_path, saved):
    bare = network()
    inner = Module(bare)
    first, second = (bare, inner) if saved == "bare" else (inner, bare)
    reg = taught(first)
    reg.save(tmp_path / "one")
    with pytest.raises(CheckpointError, match=r"no parameter .*, as the model has .*load\(\.\.\., prefix='net\.'\)"):
        FROMP.load(tmp_path / "one", second)
    again = FROMP.load(tmp_path / "one", second, prefix="net.")
    assert again.penalty().item() == 0
    again.save(tmp_path / "two")  # from now on under the model's own names
    last = FROMP.load(tmp_path / "two", second)
    move(bare)
    assert last.penalty().item() == reg.penalty().item() > 0
    again.load_state_dict(reg.state_dict(), prefix="net.")
    assert again.penalty().item() == reg.penalty().item()


@pytest.mark.parametrize(
    "options", [{}, {"kernel": HalfKernel}, {"kernel": IdentityKernel}], ids=["full", "half", "identity"]
)
def test_to_another_type(options):
    model = network()
    reg = taught(model, **options)
    model.double()
    message = (
        r"model is torch\.float64 on cpu, what is kept .* torch\.float32 on cpu; .*reg\.to\('cpu', torch\.float64\)"
    )
    for call in (
        reg.penalty,
        reg.drift,
        lambda: reg.end_task(task(2, torch.double)),
        lambda: reg.predict(task(2)[0].double()),
    ):
        with pytest.raises(FrompError, match=message):
            call()
    assert reg.to(torch.float64) is reg
    assert reg.memories[0].inputs.dtype == reg.precision["0.weight"].dtype == torch.float64
    assert reg.penalty().item() == pytest.approx(0, abs=1e-8)
    reg.predict(task(2)[0].double())
    reg.end_task(task(2, torch.double))
    model.half()
    reg.to("cpu", torch.float16)
    assert reg.memories[0].inputs.dtype == torch.float16
    assert reg.precision["0.weight"].dtype == reg.penalty().dtype == torch.float32


def test_the_penalty_is_the_same_in_double_precision():
    regs = [taught(network()) for _ in range(2)]
    regs[1].model.double()
    regs[1].to(torch.float64)
    for reg in regs:
        move(reg.model)
    assert regs[1].penalty().item() == pytest.approx(regs[0].penalty().item(), rel=1e-4)


def test_a_model_on_another_device_is_named():
    model = network()
    reg = taught(model)
    model.to("meta")
    with pytest.raises(FrompError, match=r"model is torch\.float32 on meta, what is kept .* on cpu; .*reg\.to\('meta'"):
        reg.penalty()


def test_where_nothing_can_be_brought():
    reg = taught(network())
    before = reg.state_dict()["tasks"][0]["mean"]
    for where, message in (("moon", "'moon' is no device"), (torch.long, "int64 is not a floating-point type")):
        with pytest.raises(FrompError, match=message):
            reg.to(where)
    assert reg.state_dict()["tasks"][0]["mean"] is before or torch.equal(reg.state_dict()["tasks"][0]["mean"], before)


def test_a_state_of_another_type_is_converted(tmp_path):
    model = network()
    reg = taught(model)
    reg.save(tmp_path)
    move(model)
    expected = reg.penalty().item()
    again = FROMP.load(tmp_path, model.double())
    with pytest.warns(UserWarning, match="weights are not those"):
        assert again.penalty().item() == pytest.approx(expected, rel=1e-3)


def test_a_state_saved_after_the_model_was_converted(tmp_path):
    """The memory's own type is saved, not the model's."""
    model = network()
    reg = taught(model)
    model.double()
    reg.save(tmp_path)
    assert FROMP.load(tmp_path, model).penalty().item() == pytest.approx(0, abs=1e-8)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(5, 6), nn.Linear(6, 4).double()

    def forward(self, x):
        return self.out(torch.tanh(self.inner(x)).double())


def test_weights_of_two_types_come_back(tmp_path):
    model = Mixed()
    reg = taught(model)
    reg.save(tmp_path)
    assert FROMP.load(tmp_path, model).penalty().item() == pytest.approx(0, abs=1e-12)


def test_inputs_of_another_type_are_named():
    reg = taught(network())
    x, y = task(2, torch.double)
    message = r"the inputs are torch\.float64, the model's weights torch\.float32.*x\.to\(torch\.float32\)"
    with pytest.raises(FrompError, match=message):
        reg.end_task((x, y))
    with pytest.raises(FrompError, match=message):
        reg.predict(x)
    assert len(reg.memories) == 1
