"""What a type checker says of calls: right ones pass, wrong ones are marked."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

CALLS = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fromp import FROMP, Categorical, Gaussian

model, x, y = nn.Linear(2, 2), torch.zeros(4, 2), torch.zeros(4)
data: Dataset = TensorDataset(x, y)
reg = FROMP(model, Categorical(), output=lambda out: out["scores"])
reg.end_task((x, y))
reg.end_task(x, y)
reg.end_task(((x, x), y), head=[0, 1])
reg.end_task(np.zeros((4, 2)), [0, 1, 0, 1])
reg.end_task({"x": x, "labels": y}, task="b")
reg.end_task([(x, y), (x, y)], [0, 1])
reg.end_task(data, head=range(2))
reg.end_task(DataLoader(data), task=1)
loss: torch.Tensor = reg.penalty()
mean, variance = reg.predict({"x": x}, task="b")
reg = FROMP.load("folder", model, prefix="net.").to("cuda", torch.float64)
reg.end_task(42)  # wrong
reg.end_task(None)  # wrong
reg.end_task(data, head=3)  # wrong
reg.end_task(data, task=x)  # wrong
FROMP(model, "categorical")  # wrong
FROMP(model, Gaussian(), memory_size="20")  # wrong
reg.forget("first")  # wrong
"""


def test_a_type_checker_marks_the_wrong_calls_and_no_other(tmp_path):
    path = tmp_path / "calls.py"
    path.write_text(CALLS)
    wrong = {number for number, line in enumerate(CALLS.splitlines(), 1) if line.endswith("# wrong")}
    command = [sys.executable, "-m", "mypy", "--config-file=", "--no-error-summary", "--ignore-missing-imports", path]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src"), "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache/calls")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    marked = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert marked == wrong, done.stdout + done.stderr
