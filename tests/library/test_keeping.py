"""Features of a frozen trunk in the place of the inputs: as if they had been the data, and nothing raw remains."""

import gc
import struct

import pytest
import torch
from oracles.small import move
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fromp import FROMP, Categorical, CheckpointError, FrompError
from fromp.foundation.state import flatten


def trunk(seed=1):
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Dropout(0.5)).double()
    return made.train().requires_grad_(False)


def head():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def raw(task=0, n=700):
    generator = torch.Generator().manual_seed(900 + task)
    return torch.randn(n, 4, generator=generator).double() + task, torch.arange(n) % 2


def features(of, x):
    of.eval()
    with torch.no_grad():
        found = of(x)
    of.train()
    return found


OPTIONS = {"memory_size": 10, "jitter": 1e-3}


@pytest.mark.parametrize(
    "given",
    [lambda x, y: (x, y), TensorDataset, lambda x, y: DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)],
    ids=["tuple", "Dataset", "DataLoader"],
)
def test_it_is_as_if_the_features_were_the_data(given):
    bottom = trunk()
    kept, direct = FROMP(head(), Categorical(), keep=bottom, **OPTIONS), FROMP(head(), Categorical(), **OPTIONS)
    for task in range(2):
        x, y = raw(task)
        kept.end_task(given(x, y))
        direct.end_task((features(bottom, x), y))
        for reg in (kept, direct):
            move(reg.model, 0.1)
    assert all(module.training for module in bottom.modules())
    ones, others = (flatten(reg.state_dict())[0] for reg in (kept, direct))
    assert ones.keys() == others.keys()
    for name, value in ones.items():
        torch.testing.assert_close(value, others[name], rtol=1e-9, atol=1e-9)
    assert kept.penalty().item() == pytest.approx(direct.penalty().item(), rel=1e-9) != 0
    x, _ = raw(2)
    for one, other in zip(kept.predict(x), direct.predict(features(bottom, x)), strict=True):
        torch.testing.assert_close(one, other)


def test_nothing_of_the_raw_input_remains(tmp_path):
    reg = FROMP(head(), Categorical(), keep=trunk(), **OPTIONS)
    x, y = raw()
    values = {struct.pack("d", value) for value in x.flatten().tolist()}
    reg.end_task((x, y))
    del x
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]
    reg.save(tmp_path)
    written = b"|".join(path.read_bytes() for path in tmp_path.iterdir())
    for number in reg.memories[0].inputs.flatten().tolist():
        assert struct.pack("d", number) in written
    everything = b"|".join([written, *(bytes(t.untyped_storage()) for t in tensors if not t.is_meta)])
    eights = {everything[k : k + 8] for k in range(len(everything) - 7)}
    assert not eights & values


def test_several_inputs_and_functions():
    def total(a, b):
        return a + 2 * b

    x, y = raw()
    a, b = x[:, :3], x[:, 1:]
    direct = FROMP(head(), Categorical(), **OPTIONS)
    direct.end_task((total(a, b), y))
    for given in ((a, b), {"a": a, "b": b}):
        reg = FROMP(head(), Categorical(), keep=total, **OPTIONS)
        reg.end_task((given, y))
        assert torch.equal(reg.memories[0].inputs, direct.memories[0].inputs)


def test_saved_and_loaded(tmp_path):
    reg = FROMP(head(), Categorical(), keep=trunk(), **OPTIONS)
    reg.end_task(raw())
    reg.save(tmp_path)
    again = FROMP.load(tmp_path, head(), keep=trunk())
    for one in (reg, again):
        one.end_task(raw(1))
    for name, value in flatten(reg.state_dict())[0].items():
        assert torch.equal(value, flatten(again.state_dict())[0][name])
    with pytest.raises(CheckpointError, match=r"what a transform made of the inputs; give it again, as in load"):
        FROMP.load(tmp_path, head())
    with pytest.raises(CheckpointError, match=r"keep is not what the memory was made with: '0\.\w+' differs"):
        FROMP.load(tmp_path, head(), keep=trunk(seed=2))
    FROMP(head(), Categorical()).save(tmp_path)
    FROMP.load(tmp_path, head(), keep=trunk())  # before any task
    plain = FROMP(head(), Categorical(), **OPTIONS)
    plain.end_task(features(trunk(), raw()[0]), raw()[1])
    plain.save(tmp_path)
    with pytest.raises(CheckpointError, match="holds inputs as they came, without a transform"):
        FROMP.load(tmp_path, head(), keep=trunk())


def test_a_trunk_that_moves_is_noticed():
    with pytest.raises(FrompError, match=r"keep has 2 parameters that training may change, such as 'weight'"):
        FROMP(head(), Categorical(), keep=nn.Linear(4, 3))
    bottom = trunk()
    reg = FROMP(head(), Categorical(), keep=bottom, **OPTIONS)
    reg.end_task(raw())
    bottom(raw()[0])  # in training mode: its running statistics move
    with pytest.raises(FrompError, match=r"made with: '1\.\w+' differs.*train it no further"):
        reg.end_task(raw(1))
    assert len(reg.memories) == 1
    reg.forget(0)
    reg.end_task(raw(1))


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (3, "keep=3 cannot be called"),
        (lambda x: x[:5, :3], "keep made 5 examples of"),
        (lambda x: x[:, :3] * float("nan"), "NaN"),
    ],
    ids=["a number", "fewer", "not finite"],
)
def test_what_cannot_be_kept(keep, message):
    with pytest.raises(FrompError, match=message):
        FROMP(head(), Categorical(), keep=keep, **OPTIONS).end_task(raw())
