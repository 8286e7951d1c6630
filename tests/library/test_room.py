"""The memory that the end of a task takes is estimated before any work, and refused in words that say what fits."""

import re
import subprocess
import sys

import pytest
import torch
from torch import nn

from fromp import FROMP, Categorical, FrompError, IdentityKernel, regulariser
from fromp.foundation.state import flatten
from fromp.lab.bench.timing import in_a_process
from fromp.room import free_bytes

MIB = 2**20


def data(task=0):
    generator = torch.Generator().manual_seed(task)
    return torch.randn(400, 4, generator=generator), torch.arange(400) % 10


def taught(task=0, **options):
    torch.manual_seed(0)
    reg = FROMP(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 10)), Categorical(), **options)
    reg.end_task(data(task))
    return reg


def shape_of(reg):
    tensors, _ = flatten(reg.state_dict())
    return {name: (tuple(value.shape), float(value.double().sum())) for name, value in tensors.items()}


def refused(reg):
    before = shape_of(reg)
    with pytest.raises(FrompError) as said:
        reg.end_task(data(1))
    assert shape_of(reg) == before
    return str(said.value)


def test_a_budget_that_is_too_small_is_refused_before_any_work(monkeypatch):
    reg = taught(memory_size=20)
    reg.memory_size, reg.memory_budget = 200, 3 * MIB
    monkeypatch.setattr(regulariser, "assess", lambda *_: pytest.fail("it has begun"))
    said = refused(reg)
    assert "The kernels of 2 tasks take" in said, said
    assert "kernel=IdentityKernel" in said


def test_what_it_says_would_fit_does_fit():
    reg = taught(memory_size=20)
    reg.memory_size, reg.memory_budget = 200, 3 * MIB
    fits = int(re.search(r"memory_size=(\d+)", refused(reg))[1])
    assert 20 < fits < 200
    reg.memory_size = fits + 1
    assert "There is room with memory_size" in refused(reg)
    enough = int(re.search(r"memory_budget of .* \((\d+)\)", refused(reg))[1])
    reg.memory_budget = enough - 1
    refused(reg)
    reg.memory_budget = enough
    reg.end_task(data(1))
    reg.memory_size, reg.memory_budget = fits, 3 * MIB
    again = taught(memory_size=20)
    again.memory_size, again.memory_budget = fits, 3 * MIB
    again.end_task(data(1))
    assert len(again.memories[1]) == fits
    taught(memory_size=200, memory_budget=3 * MIB, kernel=IdentityKernel)


def test_without_a_budget_it_is_what_is_free(monkeypatch):
    reg = taught(memory_size=20)
    monkeypatch.setattr(regulariser, "free_bytes", lambda device: 10_000)
    assert "10 KiB are free" in refused(reg)
    monkeypatch.setattr(regulariser, "free_bytes", lambda device: None)  # nobody knows
    reg.end_task(data(1))


def test_merging_is_estimated_too():
    reg, other = taught(memory_size=20), taught(1, memory_size=20)
    reg.memory_budget = 10_000
    with pytest.raises(FrompError, match="memory_budget=10000 allows 10 KiB"):
        reg.merge(other)
    assert len(reg.memories) == 1


def test_free_memory_is_read_where_it_is_written(tmp_path):
    cpu, file = torch.device("cpu"), tmp_path / "meminfo"
    assert free_bytes(cpu, file) is None
    file.write_text("MemTotal: 9 kB\nMemAvailable:    1000 kB\n")
    assert free_bytes(cpu, file) == 1_024_000
    file.write_text("something else\n")
    assert free_bytes(cpu, file) is None


class Hungry(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.wants, self.wrong = nn.Linear(4, 10), 1, False

    def forward(self, x):
        if self.wrong:
            raise RuntimeError("something else")
        return self.inner(x) + torch.empty(self.wants)[0].detach() * 0 if self.wants > 1 else self.inner(x)


def test_what_torch_says_when_memory_runs_out_is_said_in_our_words():
    reg = FROMP(Hungry(), Categorical(), memory_size=20)
    reg.end_task(data())
    reg.model.wants = 2**50
    assert "memory ran out in end_task, and nothing has been changed" in refused(reg)
    with pytest.raises(FrompError, match="memory ran out in predict"):
        reg.predict(data()[0])
    reg.model.wrong = True
    with pytest.raises(RuntimeError, match="something else"):
        reg.end_task(data(1))


@pytest.mark.parametrize(("classes", "points", "budget"), [(10, 400, 256), (100, 100, 128)])
def test_what_is_used_is_within_the_budget(classes, points, budget):
    script = f"""
import torch
from torch import nn
from fromp import FROMP, Categorical
from fromp.lab.bench.memory import _peak
torch.set_num_threads(1)
torch.manual_seed(0)
x, y = torch.randn(1000, 10), torch.arange(1000) % {classes}
warm = FROMP(nn.Linear(10, 2), Categorical(), memory_size=2)
warm.end_task((x[:4], y[:4] % 2))  # what is imported on first use is not counted
model = nn.Sequential(nn.Linear(10, 100), nn.ReLU(), nn.Linear(100, {classes}))
reg = FROMP(model, Categorical(), memory_size={points}, memory_budget={budget * MIB})
before = _peak(reset=True)
for task in range(3):
    reg.end_task((x + task, y))
print((_peak() - before) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0.2 * budget < float(done.stdout) < budget + 16  # the allocator has some pages of its own


def test_kernels_of_many_outputs_are_within_the_budget():
    """The slopes of every output at every other take 36 MB, and what is formed of them far more."""
    budget, kept = 32, 4 * 300 * 100**2 / MIB
    grown = in_a_process(f"print_growth_of_kernels(300, 100, {budget * MIB})")
    assert kept < grown < budget + 2 * kept + 8  # the inverses, and a copy while they are put together
