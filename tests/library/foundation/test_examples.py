"""A task's data in every form that `end_task` takes gives the same memory; every other form is refused in words."""

import os
import subprocess
import sys
from collections import UserDict
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import fromp
from fromp import FROMP, Categorical, DataError, Gaussian
from fromp.foundation.arrays import as_tensors
from fromp.foundation.examples import as_examples

N = 24
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(1))
MASK = (torch.arange(N * 3).view(N, 3) % 5 > 0).float()
Y = torch.arange(N) % 4


class Masked(nn.Module):
    """Takes its inputs by position or by name."""

    def __init__(self, outputs=4):
        super().__init__()
        self.layer = nn.Linear(3, outputs)

    def forward(self, x, mask=None):
        return self.layer(x if mask is None else x * mask)


def regulariser(likelihood=None, outputs=4, dtype=torch.float32):
    torch.manual_seed(0)
    return FROMP(Masked(outputs).to(dtype), likelihood or Categorical(), memory_size=8, jitter=1e-2)


class Rows(Dataset):
    """What Hugging Face calls a dataset: rows are dicts, here as `give` makes them."""

    def __init__(self, give, y=Y):
        self.give, self.y = give, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.give(i)


class Foreign:
    """A map-style dataset that is not torch's, with tensors as after `set_format("torch")`."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"x": X[i], "mask": MASK[i], "label": Y[i]}


class Frame:
    """What pandas has of an array, read-only as pandas gives it."""

    def __init__(self, values):
        self.values, self.shape = values, values.shape

    def __len__(self):
        return len(self.values)

    def __getitem__(self, name):
        raise KeyError(name)

    def __array__(self, dtype=None, copy=None):
        found = self.values.astype("float64").copy()
        found.flags.writeable = False
        return found


def collate(rows):
    """What Hugging Face's collators give: `label` of the rows is `labels` of the batch."""
    batch = {name: torch.stack([row[name] for row in rows]) for name in ("x", "mask")}
    return UserDict({**batch, "labels": torch.stack([row["label"] for row in rows])})


def batches(size):
    return [(X[k : k + size], Y[k : k + size]) for k in range(0, N, size)]


PLAIN = {
    "pair": lambda: ((X, Y),),
    "list": lambda: ([X, Y],),
    "two arguments": lambda: (X, Y),
    "arrays": lambda: ((X.double().numpy(), Y.numpy()),),
    "two arrays": lambda: (X.numpy(), Y.to(torch.int16).numpy()),
    "array and tensor": lambda: ((X.numpy(), Y),),
    "an array backwards": lambda: (numpy.flip(numpy.flip(X.numpy()).copy()), Y),
    "bytes the other way round": lambda: (X.numpy().astype(">f4"), Y.numpy().astype(">i4")),
    "lists of numbers": lambda: ((X.tolist(), Y.tolist()),),
    "a frame": lambda: (Frame(X.numpy()), Y.numpy()),
    "narrow integers": lambda: ((X, Y.to(torch.uint8)),),
    "minibatches": lambda: (batches(7),),
    "two minibatches": lambda: (batches(12),),
    "minibatches of arrays": lambda: ([(x.numpy(), y.tolist()) for x, y in batches(5)],),
    "lists of minibatches": lambda: ([list(batch) for batch in batches(12)],),
    "examples": lambda: ([(X[i], int(Y[i])) for i in range(N)],),
    "examples of arrays": lambda: ([(X[i].double().numpy(), Y[i].numpy()) for i in range(N)],),
    "a TensorDataset": lambda: (TensorDataset(X, Y),),
    "a Dataset of arrays": lambda: (Rows(lambda i: (X[i].double().numpy(), int(Y[i]))),),
    "a Dataset of lists": lambda: (Rows(lambda i: (X[i].tolist(), int(Y[i]))),),
    "a DataLoader": lambda: (DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True),),
    "the DataLoader's batches": lambda: (list(DataLoader(TensorDataset(X, Y), batch_size=7)),),
}
NAMED = {
    "a tuple of inputs": lambda: (((X, MASK), Y),),
    "a dict of inputs": lambda: (({"x": X, "mask": MASK}, Y),),
    "a dict and labels": lambda: ({"x": X, "mask": MASK.numpy()}, Y),
    "labels in the dict": lambda: ({"x": X, "mask": MASK, "labels": Y},),
    "label in the dict": lambda: (UserDict({"x": X.numpy(), "mask": MASK, "label": Y.numpy()}),),
    "a dataset of dicts": lambda: (Foreign(),),
    "a dataset of dicts of lists": lambda: (
        Rows(lambda i: {"x": X[i].tolist(), "mask": MASK[i].tolist(), "label": int(Y[i])}),
    ),
    "a loader with a collator": lambda: (DataLoader(Foreign(), batch_size=5, collate_fn=collate),),
    "a list of dicts": lambda: (list(DataLoader(Foreign(), batch_size=5, collate_fn=collate)),),
    "a list of rows": lambda: ([Foreign()[i] for i in range(N)],),
}


def assert_same(reg, expected):
    """Which points are kept, their labels, and the precision."""
    mine, theirs = reg.memories[0], expected.memories[0]
    assert torch.equal(mine.indices, theirs.indices)
    assert torch.equal(mine.labels, theirs.labels)
    assert mine.labels.dtype == theirs.labels.dtype
    for name, value in expected.precision.items():
        torch.testing.assert_close(reg.precision[name], value)


@pytest.mark.parametrize("form", PLAIN)
def test_inputs_and_labels(form):
    expected, reg = regulariser(), regulariser()
    expected.end_task((X, Y))
    reg.end_task(*PLAIN[form]())
    assert_same(reg, expected)
    assert torch.equal(reg.memories[0].inputs, expected.memories[0].inputs)


@pytest.mark.parametrize("form", NAMED)
def test_several_inputs_and_labels(form):
    expected, reg = regulariser(), regulariser()
    expected.end_task(({"x": X, "mask": MASK}, Y))
    reg.end_task(*NAMED[form]())
    assert_same(reg, expected)


@pytest.mark.parametrize("give", [lambda: ((X, Y % 2), [2, 3]), lambda: (X, Y % 2, [2, 3])], ids=["pair", "two"])
def test_the_head_comes_after_the_labels(give):
    reg, by_name = regulariser(), regulariser()
    reg.end_task(*give())
    by_name.end_task(*give()[:-1], head=[2, 3])
    assert reg.memories[0].head == by_name.memories[0].head == (2, 3)
    assert torch.equal(reg.memories[0].labels, by_name.memories[0].labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_of_arrays_become_what_the_model_computes_in(dtype):
    for data in [(X.double().numpy(), Y.numpy()), (X.tolist(), Y), Rows(lambda i: (X[i].double().numpy(), 0))]:
        reg = regulariser(dtype=dtype)
        reg.end_task(data)
        assert reg.memories[0].inputs.dtype == dtype
    reg = regulariser(Gaussian(), outputs=1, dtype=dtype)
    reg.end_task(Rows(lambda i: (X[i].double().numpy(), float(X[i, 0]))))
    assert reg.memories[0].labels.dtype == dtype
    assert reg.predict(X.double().numpy()).mean.dtype == dtype


def test_tensors_stay_as_they_are():
    given = {"x": X, "task": "first", "more": (MASK, 3)}
    found = as_tensors(given)
    assert found["x"] is X
    assert found["more"][0] is MASK
    assert found["task"] == "first"
    x, y = as_examples((X.double(), Y)).take(torch.arange(2))
    assert x.dtype == torch.double
    assert y.dtype == torch.int64


def test_minibatches_of_different_lengths_may_come_from_a_loader_that_pads():
    """The kept examples are padded together, so that the loader works where a list of its batches cannot."""
    lengths = [3 + i % 4 for i in range(N)]
    rows = Rows(lambda i: {"x": torch.ones(lengths[i]), "label": Y[i]})

    def pad(rows):
        x = nn.utils.rnn.pad_sequence([row["x"] for row in rows], batch_first=True)
        return {
            "x": nn.functional.pad(x, (0, 6 - x.shape[1]))[:, :3],
            "labels": torch.stack([r["label"] for r in rows]),
        }

    reg = regulariser()
    reg.end_task(DataLoader(rows, batch_size=4, collate_fn=pad))
    assert len(reg.memories[0]) == 8


class Endless(IterableDataset):
    def __iter__(self):
        return iter(batches(6))


ONE_HOT = nn.functional.one_hot(Y, 4)
REFUSED = {
    "a bare tensor": ((X,), r"a tensor of shape \(24, 3\) holds no labels; give them .* end_task\(x, y\)"),
    "a bare array": ((X.numpy(),), r"a ndarray of shape \(24, 3\) holds no labels"),
    "a frame alone": ((Frame(X.numpy()),), r"a Frame of shape \(24, 3\) holds no labels"),
    "a dict without labels": (({"x": X, "mask": MASK},), r"a dict with 'x', 'mask' holds no labels.*'labels'"),
    "a dict with both": (({"x": X, "label": Y, "labels": Y},), r"has 'labels' and 'label'; leave one of them out"),
    "a dict of labels alone": (({"labels": Y},), r"hold no tensor|hold \[\] examples"),
    "a generator": (((x, y) for x, y in batches(6)), r"a generator can only be gone through in order.*list\(\.\.\.\)"),
    "an iterator": ((iter(batches(6)),), r"a list_iterator can only be gone through in order"),
    "an iterable dataset": ((Endless(),), r"an Endless can only be gone through in order"),
    "its loader": ((DataLoader(Endless(), batch_size=None),), r"an Endless can only be gone through in order"),
    "a loader without batches": (
        (DataLoader(TensorDataset(X, Y), batch_size=None),), r"batch_size=None.*give list\(loader\)",
    ),
    "text": (("train.csv",), r"'train\.csv' is not the data of a task; give \(x, y\)"),
    "a number": ((42,), r"42 is not the data of a task"),
    "nothing": ((None,), r"None is not the data of a task"),
    "a class": ((TensorDataset,), r"the class TensorDataset is not the data of a task"),
    "a set": (({1, 2},), r"a set is not the data of a task"),
    "a model": ((nn.Sequential(nn.Linear(3, 4)),), r"such as a Linear, cannot be stacked .*collate_fn"),
    "no labels in the pair": (((X, None),), r"the labels are None; give one label for each input"),
    "no labels in the list": (([X, None],), r"the labels are None"),
    "no labels beside": ((X, None), r"the labels are None"),
    "labels as text": (((X, ["cat", "dog"] * 12),), r"the labels are text \('cat'\); number the classes from 0"),
    "labels as an array of text": (((X, numpy.array(["cat"] * N)),), r"cannot be read as numbers.*numpy\.str_"),
    "labels as objects": (((X, object()),), r"the labels are an object; give a tensor, an array or a list"),
    "ragged lists": ((([[1.0, 2.0], [3.0]], [0, 1]),), r"a list of 2 cannot be read as numbers"),
    "one label": (((X, torch.tensor(1)),), r"a single label \(1\).*give shape \(examples,\)"),
    "a pair of pairs": ((((X, Y), (X, Y)),), r"the labels are a tuple of 2; give a tensor"),
    "three parts": (((X, MASK, Y),), r"a tuple of 3 is not labelled data.*\(\(a, b\), labels\)"),
    "three tensors": (([X, X[:3], Y],), r"a list is read as minibatches .* holds a tensor of shape \(24, 3\)"),
    "inputs and labels of unequal length": (([X, Y[:5]],), r"24 inputs but 5 labels"),
    "several inputs, labels beside": (((X, MASK), Y), r"shape \(24,\) was given beside a tuple of 2.*\(\(a, b\), y\)"),
    "only a head": ((X, [2, 3]), r"24 inputs but 2 labels"),
    "too much": (((X, Y), [0, 1, 2, 3], torch.ones(N)), r"give everything else by name, as in scores="),
    "a dataset of inputs": ((TensorDataset(X),), r"a list of 1 is not labelled data"),
    "a dataset of tensors": ((Rows(lambda i: X[i]),), r"a tensor of shape \(\d+, 3\) holds no labels"),
    "a dataset of unequal rows": ((Rows(lambda i: (torch.ones(1 + i), 0)),), r"a tuple of 2, cannot be stacked"),
    "no minibatches": (([],), r"the task has no examples"),
    "minibatches padded apart": (
        ([(X, Y), (torch.ones(4, 5), Y[:4])],),
        r"minibatch 1 has inputs and labels float32 \(4, 5\), int64 \(4,\), the first float32 \(24, 3\).*DataLoader",
    ),
    "labels in fractions": (((X, Y + 0.5),), r"float32 of shape \(24,\); give integers.*or use Gaussian\(\)"),
    "labels in floats": (((X, Y.float()),), r"give integers of shape \(examples,\), as y\.long\(\)"),
    "labels in booleans": (((X, Y > 1),), r"torch\.bool.*as y\.long\(\)"),
    "labels one-hot": (((X, ONE_HOT),), r"int64 of shape \(24, 4\).*as y\.argmax\(1\)"),
    "labels one-hot in floats": (((X, ONE_HOT.float()),), r"as y\.argmax\(1\)"),
    "labels in a column": (((X, Y[:, None]),), r"as y\.squeeze\(1\)\."),
    "labels in a column of floats": (((X, Y[:, None].float()),), r"as y\.squeeze\(1\)\.long\(\)"),
    "no values": (((X.to("meta"), Y),), r"on the meta device"),
}  # fmt: skip


@pytest.mark.parametrize("form", REFUSED)
def test_every_other_form_is_refused_and_changes_nothing(form):
    reg = regulariser()
    reg.end_task((X, Y))
    before, draws = reg.precision, reg._generator.get_state()
    given, message = REFUSED[form]
    with pytest.raises(DataError, match=message):
        reg.end_task(*(given if isinstance(given, tuple) else (given,)))
    assert len(reg.memories) == 1
    assert reg.precision is before
    assert torch.equal(reg._generator.get_state(), draws)


def test_the_head_is_given_once():
    with pytest.raises(DataError, match=r"head was given twice, as \[0, 1\] and as \[2, 3\]"):
        regulariser().end_task((X, Y % 2), [0, 1], head=[2, 3])


TYPED = """
from collections.abc import Iterable
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fromp import FROMP, Categorical, Regulariser, TaskData

x, y = torch.zeros(4, 3), torch.arange(4)


class Foreign:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int | slice | Iterable[int]) -> dict[str, Any]:
        return {"x": x, "label": 0}


def every_form(reg: FROMP, data: TaskData, dataset: Dataset[tuple[Tensor, int]], table: numpy.ndarray) -> None:
    reg.end_task((x, y))
    reg.end_task(x, y)
    reg.end_task(x, y, head=[0, 1])
    reg.end_task((x, y), [0, 1], scores=[0.5, 0.5, 0.5, 0.5])
    reg.end_task([(x, y), (x, y)])
    reg.end_task((table, table))
    reg.end_task(table, [0, 1, 0, 1])
    reg.end_task({"x": x, "labels": y})
    reg.end_task({"x": x}, y)
    reg.end_task(dataset)
    reg.end_task(TensorDataset(x, y))
    reg.end_task(DataLoader(TensorDataset(x, y), batch_size=2), head=(0, 1))
    reg.end_task(Foreign())
    reg.end_task(data)
    anything: Regulariser = reg
    anything.end_task((x, y), [0, 1])


def refused(reg: FROMP, anything: Regulariser) -> None:
    reg.end_task(42)
    reg.end_task(None)
    anything.end_task(42)
    reg.end_task(DataLoader)
    reg.end_task(reg)
"""


def test_a_type_checker_takes_these_forms_and_refuses_a_number(tmp_path):
    (tmp_path / "typed.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--python-version", "3.11", tmp_path / "typed.py"]
    sources = {**os.environ, "MYPYPATH": str(Path(fromp.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=sources)
    lines = TYPED.splitlines()
    first = lines.index("def refused(reg: FROMP, anything: Regulariser) -> None:") + 2
    wrong = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert wrong == set(range(first, len(lines) + 1)), done.stdout + done.stderr
