"""The model as a function that gives f, however it is wrapped and whatever it returns."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fromp import FROMP, Categorical, CheckpointError, FrompError
from fromp.derivatives.model import named_weights, outputs
from fromp.foundation.state import flatten


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()


def task(seed=1):
    return torch.randn(30, 5, generator=torch.Generator().manual_seed(seed)).double(), torch.arange(30) % 4


@dataclass
class Dataclass:
    loss: Tensor | None
    logits: Tensor


class ModelOutput(OrderedDict):
    """As Hugging Face has it: a dict whose entries are attributes too."""

    def __getattr__(self, name):
        return self[name]


class Named(NamedTuple):
    hidden: Tensor
    logits: Tensor


class Returning(nn.Module):
    """`network` under a name, with its outputs packed."""

    def __init__(self, pack):
        super().__init__()
        self.inner, self.pack = network(), pack

    def forward(self, x):
        return self.pack(self.inner(x))


PACKED = {
    "dataclass": lambda f: Dataclass(None, f),
    "ModelOutput": lambda f: ModelOutput(loss=f.sum(), logits=f),
    "dict": lambda f: {"hidden": f[:, :1], "logits": f},
    "tuple": lambda f: (f, f[:, :1]),
    "list": lambda f: [f],
    "namedtuple": lambda f: Named(f[:, :1], f),
}


def learned(model, **options):
    """A regulariser after two tasks, and its penalty and gradients at other weights."""
    reg = FROMP(model, Categorical(), memory_size=8, jitter=1e-3, **options)
    reg.end_task(task(1), head=[0, 1, 2, 3])
    reg.end_task(task(2))
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1
    penalty = reg.penalty()
    penalty.backward()
    return reg, [penalty.detach(), *(p.grad for p in model.parameters()), *reg.predict(task(3)[0])]


def kept(reg):
    return list(flatten({key: reg.state_dict()[key] for key in ("precision", "tasks")})[0].values())


def assert_equal(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("pack", PACKED.values(), ids=PACKED)
def test_outputs_are_found_in_what_a_model_returns(pack):
    (reg, values), (plain, expected) = learned(Returning(pack)), learned(network())
    assert_equal(values, expected)
    assert_equal(kept(reg), kept(plain))


def test_outputs_are_where_the_user_says():
    model = Returning(lambda f: {"logits": f[:, :1], "scores": (f,)})
    (reg, values), (plain, expected) = learned(model, output=lambda out: out["scores"]), learned(network())
    assert_equal(values, expected)
    assert_equal(kept(reg), kept(plain))
    assert reg.model is model
    assert set(reg.precision) == {f"inner.{name}" for name in plain.precision}


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (
            lambda f: {"scores": f},
            r"gave a dict with 'scores', with None where the outputs are looked for.*output=lambda",
        ),
        (lambda f: (f.sum(), f), r"a tuple of 2, with a tensor of shape \(\).*output=lambda"),
        (lambda f: f[:, 0], r"gave a tensor of shape \(\d+,\); .*\(batch, outputs\).*output=lambda"),
        (lambda f: None, "gave None; .*output=lambda"),
    ],
)
def test_outputs_that_are_not_found(pack, message):
    reg = FROMP(Returning(pack), Categorical(), memory_size=8)
    with pytest.raises(FrompError, match=message):
        reg.end_task(task())
    assert not reg.memories


def test_an_output_of_ones_own_is_given_again(tmp_path):
    model, pick = Returning(lambda f: {"scores": f}), lambda out: out["scores"]
    reg, _ = learned(model, output=pick)
    reg.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"output .*lambda.* is your own; give it again: load\(..., output="):
        FROMP.load(tmp_path, model)
    again = FROMP.load(tmp_path, model, output=pick)
    assert again.penalty().item() == reg.penalty().item() > 0


WRAPPED = {
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "data parallel": nn.DataParallel,
    "both": lambda model: torch.compile(nn.DataParallel(model), backend="eager"),
}


def nested(model):
    model[0] = torch.compile(model[0], backend="eager")
    return model


@pytest.mark.parametrize("wrap", [*WRAPPED.values(), nested], ids=[*WRAPPED, "a compiled layer"])
def test_wrapped_models_are_looked_into(wrap, tmp_path):
    (reg, values), (plain, expected) = learned(wrap(network())), learned(network())
    assert_equal(values, expected)
    assert_equal(kept(reg), kept(plain))
    assert set(reg.precision) == set(plain.precision)
    reg.save(tmp_path)
    bare = network()
    bare.load_state_dict({name: weight.detach() for name, weight in named_weights(reg.model).items()})
    assert FROMP.load(tmp_path, bare).penalty().item() == pytest.approx(plain.penalty().item(), rel=1e-10)
    plain.save(tmp_path)
    again = FROMP.load(tmp_path, reg.model)
    assert again.penalty().item() == pytest.approx(plain.penalty().item(), rel=1e-10)


def test_weights_of_inference_mode_are_named():
    with torch.inference_mode():
        model = network()
    with pytest.raises(FrompError, match=r"'0\.weight' was made under torch\.inference_mode"):
        FROMP(model, Categorical())


def test_outputs_of_inference_mode_are_named():
    class Wrong(nn.Sequential):
        @torch.inference_mode()
        def forward(self, x):
            return super().forward(x)

    with pytest.raises(FrompError, match=r"outputs were made under torch\.inference_mode.*model's forward"):
        FROMP(Wrong(*network()), Categorical(), memory_size=8).end_task(task())
    reg = FROMP(network(), Categorical(), memory_size=8)
    with torch.inference_mode(), pytest.raises(FrompError, match=r"call end_task and predict outside of it"):
        reg.end_task(task())
    assert not reg.memories


def test_inputs_of_inference_mode_are_copied():
    x, y = task()
    with torch.inference_mode():
        same = x.clone(), y.clone()
    regs = [FROMP(network(), Categorical(), memory_size=8) for _ in range(2)]
    regs[0].end_task((x, y))
    regs[1].end_task(same)
    assert_equal(kept(regs[0]), kept(regs[1]))
    assert_equal(regs[0].predict(x), regs[1].predict(same[0]))
    with torch.no_grad():
        regs[1].model[0].weight += 0.1
    regs[1].penalty().backward()


def test_a_module_of_the_users_own_named_module_keeps_its_name():
    model = nn.Sequential(OrderedDict(module=nn.Linear(5, 4)))
    assert set(named_weights(model)) == {"module.weight", "module.bias"}
    assert outputs(model, torch.zeros(2, 5)).shape == (2, 4)
