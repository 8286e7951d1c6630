"""What is held, as a table."""

import json

import pytest
import torch
from oracles.small import data, move, network
from torch import nn

from fromp import FROMP, Categorical, Gaussian
from fromp.foundation.state import flatten


def taught():
    model = network()
    reg = FROMP(model, Categorical(), memory_size=8, jitter=1e-3)
    reg.end_task(data(0), head=[0, 1])
    reg.memory_size = 5
    reg.end_task(data(1), head=[0, 2, 3, 4])
    return model, reg


def test_rows_say_what_is_kept():
    model, reg = taught()
    move(model, 0.1)
    rows = reg.inspect().rows
    assert [row["points"] for row in rows] == [8, 5]
    assert [row["head"] for row in rows] == [[0, 1], [0, 2, 3, 4]]
    assert [row["classes"] for row in rows] == [2, 2]
    for row, memory, drift in zip(rows, reg.memories, reg.drift(), strict=True):
        assert (row["lowest_score"], row["highest_score"]) == (memory.scores.min().item(), memory.scores.max().item())
        assert row["drift"] == drift > 0
    tensors = flatten(reg.state_dict()["tasks"])[0]
    assert sum(row["bytes"] for row in rows) == sum(value.nbytes for value in tensors.values())
    json.dumps(rows)


def test_as_a_table():
    _, reg = taught()
    lines = str(reg.inspect()).splitlines()
    assert lines[0].split() == ["task", "points", "classes", "head", "scores", "drift", "size"]
    assert lines[1].split()[:4] == ["0", "8", "2", "0-1"]
    assert lines[2].split()[:4] == ["1", "5", "2", "0,2-4"]
    assert lines[3].startswith("2 tasks, 13 points, ")
    assert lines[3].endswith(" of precision")
    assert len({len(line) for line in lines[:3]}) == 1


def test_it_fits_80_columns():
    torch.manual_seed(0)
    reg = FROMP(nn.Linear(3, 120), Categorical(), memory_size=40, jitter=1e-3)
    head = list(range(0, 120, 3))
    for _ in range(11):
        reg.end_task((torch.randn(40, 3) * 1e-3, torch.arange(40)), head=head)
    lines = str(reg.inspect()).splitlines()
    assert max(map(len, lines)) <= 80
    assert "  0,3,6,9,12,15...  " in lines[1]


def test_before_any_task_and_in_regression():
    reg = FROMP(nn.Linear(3, 1), Gaussian(), memory_size=4)
    assert str(reg.inspect()).splitlines()[-1] == "0 tasks, 0 points, 0 B, and 0 B of precision"
    reg.end_task((torch.randn(10, 3), torch.randn(10)))
    (row,) = reg.inspect().rows
    assert (row["head"], row["classes"], row["drift"]) == (None, 1, 0.0)
    assert str(reg.inspect()).splitlines()[-1].startswith("1 task, 4 points, ")


@pytest.mark.parametrize(("count", "text"), [(999, "999 B"), (1000, "1 kB"), (2_345_678, "2.35 MB"), (3e9, "3 GB")])
def test_sizes(count, text):
    from fromp.inspection import _size

    assert _size(count) == text
