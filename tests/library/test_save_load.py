"""The folder that holds the memory."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from fromp import (
    FROMP,
    GLM,
    Bernoulli,
    Categorical,
    CheckpointError,
    Gaussian,
    HalfKernel,
    IdentityKernel,
    Poisson,
    top,
)
from fromp.foundation import storage

CONTINUE = """
import sys, torch
sys.path.insert(0, sys.argv[2])
from test_save_load import network, probe
from fromp import FROMP
torch.set_num_threads(1)
model = network()
reg = FROMP.load(sys.argv[1], model)
torch.save([*probe(model, reg)], sys.argv[3])
"""


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))


def probe(model, reg):
    """Penalty, gradients and predictions at moved weights, and again after another task and two draws."""
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p += 0.05 * torch.sin(torch.arange(p.numel(), dtype=p.dtype) + k).view_as(p)
    for again in range(2):
        if again:
            generator = torch.Generator().manual_seed(9)
            reg.end_task((torch.randn(20, 4, generator=generator), torch.arange(20) % 2), head=[2, 3])
        for _ in range(2):
            model.zero_grad()
            penalty = reg.penalty()
            penalty.backward()
            yield penalty.detach()
            yield from (p.grad.clone() for p in model.parameters())
        yield from reg.predict(torch.linspace(-1, 1, 12).view(3, 4))


def taught(**options):
    model = network()
    reg = FROMP(model, Categorical(), tau=0.7, memory_size=6, jitter=1e-3, tasks_per_step=1, seed=4, **options)
    generator = torch.Generator().manual_seed(2)
    for head in ([0, 1], [1, 2, 3]):
        reg.end_task((torch.randn(30, 4, generator=generator), torch.arange(30) % len(head)), head=head)
    return model, reg


@pytest.mark.parametrize(
    "options", [{}, {"kernel": HalfKernel}, {"kernel": IdentityKernel, "select": top}], ids=["full", "half", "identity"]
)
def test_a_new_process_goes_on_bit_for_bit(tmp_path, options):
    model, reg = taught(**options)
    reg.penalty()  # in the middle of the turns that past tasks take
    reg.save(tmp_path / "memory")
    script = [sys.executable, "-c", CONTINUE, tmp_path / "memory", __file__.rsplit("/", 1)[0], tmp_path / "out.pt"]
    subprocess.run(script, check=True)
    there = torch.load(tmp_path / "out.pt", weights_only=True)
    here = list(probe(model, reg))
    assert len(here) == len(there)
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


def test_saving_leaves_two_files_and_a_manifest(tmp_path):
    _, reg = taught()
    reg.save(tmp_path)
    reg.end_task((torch.randn(30, 4), torch.arange(30) % 2), head=[0, 1])
    reg.save(tmp_path)  # again into the same folder: the old files go
    names = sorted(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert names == ["manifest.json", "state", "tensors"]
    assert len(FROMP.load(tmp_path, network()).memories) == 3


@pytest.mark.parametrize("step", range(3))
def test_dying_at_any_write_leaves_what_was_there(tmp_path, monkeypatch, step):
    model, reg = taught()
    reg.save(tmp_path)
    reg.end_task((torch.randn(30, 4), torch.arange(30) % 2), head=[0, 1])
    real, count = storage.os.replace, 0

    def dies(*arguments):
        nonlocal count
        if count == step:
            raise OSError("the power went")
        count += 1
        real(*arguments)

    monkeypatch.setattr(storage.os, "replace", dies)
    with pytest.raises(CheckpointError, match="the power went"):
        reg.save(tmp_path)
    monkeypatch.undo()
    assert len(FROMP.load(tmp_path, model).memories) == 2
    reg.save(tmp_path)
    assert len(FROMP.load(tmp_path, model).memories) == 3


@pytest.mark.parametrize(
    "likelihood", [Categorical(), Bernoulli(), Gaussian(2.5), Poisson()], ids=lambda lik: type(lik).__name__
)
def test_likelihoods_come_back(tmp_path, likelihood):
    FROMP(network(), likelihood).save(tmp_path)
    loaded = FROMP.load(tmp_path, network()).likelihood
    assert type(loaded) is type(likelihood)
    assert loaded.settings() == likelihood.settings()


class Own(GLM):
    def nll(self, f, y):
        return (f.exp() - y.reshape(f.shape) * f).sum(-1)


def test_a_likelihood_of_ones_own_is_given_again(tmp_path):
    FROMP(network(), Own()).save(tmp_path)
    with pytest.raises(CheckpointError, match=r"likelihood '.*Own' is your own; give it again"):
        FROMP.load(tmp_path, network())
    assert isinstance(FROMP.load(tmp_path, network(), likelihood=Own()).likelihood, Own)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, a, b):
        return torch.tanh(self.left(a)) + self.right(b)


@pytest.mark.parametrize("wrap", [lambda a, b: {"b": b, "a": a}, lambda a, b: (a, b)], ids=["dict", "tuple"])
def test_structured_inputs_come_back(tmp_path, wrap):
    torch.manual_seed(0)
    model = Two()
    reg = FROMP(model, Categorical(), memory_size=8, jitter=1e-3)
    reg.end_task((wrap(torch.randn(20, 3), torch.randn(20, 2)), torch.arange(20) % 4))
    reg.save(tmp_path)
    loaded = FROMP.load(tmp_path, model)
    with torch.no_grad():
        model.left.weight += 0.1
    assert type(loaded.memories[0].inputs) is type(reg.memories[0].inputs)
    assert loaded.penalty().item() == reg.penalty().item() > 0


def test_nothing_but_tensors_and_json_is_read(tmp_path, monkeypatch):
    import pickle

    model, reg = taught()
    reg.save(tmp_path)
    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, None)
    FROMP.load(tmp_path, model)
    for path in tmp_path.iterdir():
        if path.suffix == ".json":
            json.loads(path.read_text())
        else:
            assert path.suffix == ".safetensors"
