"""What a run asks of the machine."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from fromp.lab.engine import threads

FAULTS = """
import resource, sys, torch
from fromp.lab.engine.threads import keep_memory
from fromp.lab.benchmarks.networks import cifar_cnn

torch.set_num_threads(1)
if sys.argv[1] == "keep" and not keep_memory():
    sys.exit("no choice")
model, x = cifar_cnn(10), torch.rand(64, 3, 32, 32)
for step in range(8):
    if step == 4:  # by then it has what it needs
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    model(x).logsumexp(1).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_memory_that_is_kept_is_not_asked_for_again() -> None:
    faults = {}
    for what in ("keep", "give back"):
        # Left alone, glibc raises this threshold as it goes, and now and then gives nothing back.
        fixed = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
        child = subprocess.run([sys.executable, "-c", FAULTS, what], capture_output=True, text=True, env=fixed)
        if "no choice" in child.stderr:
            pytest.skip("this C library has no mallopt")
        faults[what] = int(child.stdout)
    assert faults["keep"] * 5 < faults["give back"]


@pytest.mark.parametrize(("width", "expected", "keeps"), [(100, 1, 0), (1000, 2, 1)])
def test_a_small_network_has_one_thread_and_a_large_one_all_and_its_memory(
    width: int, expected: int, keeps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    monkeypatch.setattr(threads, "keep_memory", lambda: kept.append(1))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with threads.threads_for(nn.Linear(1000, width)):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert len(kept) == keeps


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.ctypes, "CDLL", lambda name: object())
    assert not threads.keep_memory()
