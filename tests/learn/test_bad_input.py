"""Months that cannot be learned: an error that names the file, the column or the value, and the state as it was."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
from oracles.months import COLUMNS, PLANS, blinking, customers, month, write_csv

from fromp.foundation.errors import CheckpointError, DataError, FrompError
from fromp.learn import Learner, learner
from fromp.learn.saved import LOCK, alone


@pytest.fixture(scope="module")
def january(tmp_path_factory):
    """A folder with the state after a first month; what is in it must never change."""
    folder = tmp_path_factory.mktemp("january")
    Learner(folder / "state").learn(month(folder, 0), "churn", epochs=1, hidden=[8], memory_size=8)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def changed(**columns) -> list[list[str]]:
    """February's rows with every cell of some columns replaced, or the first rows' by the values of a list."""
    rows = customers(1)
    for name, values in columns.items():
        for index, row in enumerate(rows):
            if not isinstance(values, list):
                row[COLUMNS.index(name)] = values
            elif index < len(values):
                row[COLUMNS.index(name)] = values[index]
    return rows


LINEAR = "from torch import nn\ndef build(shape, n): return nn.Linear({})"
LATER = {
    "a column is gone": ([row[1:] for row in customers(1)], COLUMNS[1:], r"lacks the columns \['age'\]; the first"),
    "a column is new": (
        [[*row, "1"] for row in customers(1)], [*COLUMNS, "city"], r"has new columns \['city'\].*--drop city"
    ),
    "a column has another name": (
        customers(1), ["age", "salary", "plan", "churn"],
        r"lacks the columns \['income'\] and has new columns \['salary'\]",
    ),
    "a column appears twice": (customers(1), ["age", "age", "plan", "churn"], "has 2 columns 'age'"),
    "the label is gone": (
        [row[:3] for row in customers(1)], COLUMNS[:3], "has no column 'churn', the label; it has .'age'"
    ),
    "the label is continuous": (
        [[*row[:3], repr(k / 7)] for k, row in enumerate(customers(1))], COLUMNS,
        "has 60 different values in column 'churn', such as '8.4.*'; a class needs at least 5 rows: name the column",
    ),
    "a label is misspelt": (
        changed(churn=["yess"]), COLUMNS,
        "line 2: 'yess' in column 'churn' stands in 1 of 60 rows; a class that is new after no, yes",
    ),
    "a label is empty": (changed(churn=["yes", ""]), COLUMNS, "line 3: '' in column 'churn' is an empty label; fill"),
    "one class": (changed(churn="no"), COLUMNS, "has one class, 'no', in column 'churn'; a month needs at least two"),
    "ten rows": (customers(1, 10), COLUMNS, "has 10 rows; a month needs at least 20"),
    "no rows": ([], COLUMNS, "has 0 rows"),
    "text where numbers were": (
        changed(age=["30", "old"]), COLUMNS, "line 3: 'old' in column 'age' is not a number, as in the first month"
    ),
    "a row is short": ([*customers(1), ["1"]], COLUMNS, "line 62: 1 cells, but the header has 4"),
}  # fmt: skip


@pytest.mark.parametrize("what", LATER)
def test_a_later_month(january, tmp_path, what):
    rows, columns, message = LATER[what]
    before = contents(january / "state")
    with pytest.raises(DataError, match=f"february.csv.*{message}"):
        Learner(january / "state").learn(write_csv(tmp_path / "february.csv", rows, columns), tau=1.0)
    assert contents(january / "state") == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("age,é\n1,2\n".encode("latin-1"), "february.csv, after line 0: .*; save it as UTF-8, or name its"),
        ("age,churn\n".encode("utf-16"), "february.csv, after line 0: .*; save it as UTF-8"),
        (b'age,churn\n"1,yes\n' + b"x" * 200_000, "field larger than field limit .*; is a quotation mark not closed"),
        (b"age churn\n1 yes\n" * 30, "has no column 'churn', the label; it has .'age churn'"),
        (b"", "february.csv has 0 columns"),
        (b"\x00\x01", "february.csv"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table(january, tmp_path, content, message):
    before = contents(january / "state")
    (tmp_path / "february.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        Learner(january / "state").learn(tmp_path / "february.csv")
    assert contents(january / "state") == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("february.csv", "february.csv is not there"), ("february.xlsx", "ends in '.xlsx'; use .csv, .tsv"),
        ("february.parquet", "february.parquet cannot be read"),
        ("february.npz", "february.npz cannot be read as .npz"),
    ],
)  # fmt: skip
def test_a_file_of_another_kind(january, tmp_path, name, message):
    if "csv" not in name:
        (tmp_path / name).write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(DataError, match=message):
        Learner(january / "state").learn(tmp_path / name)


def test_other_separators_and_encodings_are_read(january, tmp_path):
    for number, separator in enumerate(";\t|"):
        file = write_csv(tmp_path / f"{number}.csv", customers(1), separator=separator)
        assert len(Learner(january / "state").predict(file)) == 60
    file = tmp_path / "latin.csv"
    file.write_bytes("age;income;plan\n30;4e6;plän\n".encode("latin-1"))
    assert len(Learner(january / "state", encoding="latin-1").predict(file)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "plan"}, "label='plan' and the state has 'churn'"),
        ({"kind": "quantity"}, "kind='quantity' and the state has 'classes'"),
        ({"hidden": [9]}, r"hidden=\(9,\) and the state has \(8,\)"), ({"seed": 4}, "seed=4 and the state has 0"),
        ({"words": ["plan"]}, r"words=\['plan'\] can be given with the first month only"),
        ({"drop": ["age"]}, "the column 'age' is in use since the first month"),
        ({"memory_size": 0}, "memory_size=0 must be a whole number of at least 1"),
        ({"name": "month-0"}, "there is a month 'month-0' already, from .*month-0.csv; give this one another name"),
    ],
)  # fmt: skip
def test_choices_that_contradict_the_first_month(january, tmp_path, options, message):
    before = contents(january / "state")
    with pytest.raises(FrompError, match=message):
        Learner(january / "state").learn(month(tmp_path, 1), tau=1.0, epochs=1, **options)
    assert contents(january / "state") == before


def test_a_state_of_another_network(january, tmp_path):
    with pytest.raises(FrompError, match="network='cnn' and the state has 'mlp'"):
        Learner(january / "state", "cnn").learn(month(tmp_path, 1))
    (tmp_path / "net.py").write_text("build = None")
    with pytest.raises(
        FrompError, match=r"network=.*net.py builds another network, and the state was learned with mlp 8"
    ):
        Learner(january / "state", tmp_path / "net.py").learn(month(tmp_path, 1))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def build(", "net.py cannot be run: SyntaxError"), ("x = 1", "net.py has no function build"),
        ("def build(shape, n): return 3", "build in .*net.py returned int; let it return a torch.nn.Module"),
        ("def build(shape): return 3", "build in .*net.py failed: TypeError"),
        (LINEAR.format("1, n"), r"net.py cannot take inputs of shape \(2, 6\)"),
        (LINEAR.format("shape[0], 1"), "the network of .*net.py gives 1 outputs, not 10"),
    ],
)  # fmt: skip
def test_a_network_file_that_does_not_build(tmp_path, code, message):
    (tmp_path / "net.py").write_text(code)
    with pytest.raises(FrompError, match=message):
        Learner(tmp_path / "state", tmp_path / "net.py").learn(month(tmp_path, 0), "churn", epochs=1)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"has the columns \['age', 'income', 'plan', 'churn'\]; name one of them as the label"),
        ({"label": "chrun"}, "has no column 'chrun', the label"),
        ({"label": "income", "kind": "classes"}, "different values in column 'income', such as"),
        ({"label": "plan", "kind": "quantity"}, "in column 'plan' is not a number, and the label is a quantity"),
        ({"label": "churn", "kind": "class"}, "unknown kind of label 'class'; use classes or quantity"),
        ({"label": "churn", "drop": ["agge"]}, r"has no input column 'agge'; it has \['age', 'income', 'plan'\]"),
        ({"label": "churn", "drop": ["age", "income", "plan"]}, "has no column to learn from beside 'churn'"),
        ({"label": "churn", "hidden": [0]}, "hidden=0 units; a layer has 1 to"),
        ({"label": "churn", "hidden": []}, "hidden is empty"),
        ({"label": "churn", "room": -1}, "room=-1"),
        ({"label": "churn", "epochs": 0}, "epochs=0 must be a whole number"),
        ({"label": "churn", "tau": math.nan}, "tau=nan must be zero or positive"),
    ],
)  # fmt: skip
def test_a_first_month(tmp_path, options, message):
    with pytest.raises(FrompError, match=message):
        Learner(tmp_path / "state").learn(month(tmp_path, 0), **options)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("network", "message"), [("mpl", "unknown network 'mpl'; use mlp, cnn, linear"), ("cnn", "is for images")]
)
def test_a_network_that_there_is_not(tmp_path, network, message):
    with pytest.raises(FrompError, match=message):
        Learner(tmp_path / "state", network).learn(month(tmp_path, 0), "churn")


def test_the_same_month_twice(january):
    with pytest.raises(DataError, match=r"month-0.csv was learned before, as 'month-0'; name the next month's file"):
        Learner(january / "state").learn(january / "month-0.csv", name="again")


def test_images_of_another_size_and_colour(tmp_path):
    learner = Learner(tmp_path / "state")
    learner.learn(blinking(tmp_path, 0), epochs=1, hidden=[2], memory_size=4)
    before = contents(tmp_path / "state")
    with pytest.raises(
        DataError, match="images-1: column 'image' holds 1 x 9 x 9, the first month's were 1 x 8 x 8; resize"
    ):
        learner.learn(blinking(tmp_path, 1, size=9))
    np.savez(tmp_path / "rgb.npz", image=np.zeros((40, 3, 8, 8), np.uint8), **{"class": ["above", "below"] * 20})
    with pytest.raises(DataError, match=r"rgb.npz: column 'image' holds 3 x 8 x 8, the first month's were 1 x 8 x 8"):
        learner.learn(tmp_path / "rgb.npz")
    with pytest.raises(DataError, match=r"csv lacks the columns \['image'\]"):
        learner.learn(write_csv(tmp_path / "a.csv", [["1", "above"], ["2", "below"]] * 20, ["x", "class"]))
    assert contents(tmp_path / "state") == before


def test_more_classes_than_there_is_room_for(tmp_path):
    learner = Learner(tmp_path / "state")
    learner.learn(month(tmp_path, 0), "churn", epochs=1, room=1)
    rows = [[*row[:3], PLANS[k % 3]] for k, row in enumerate(customers(1))]
    with pytest.raises(
        DataError, match="brings the classes to 5, the network has 3 outputs; start another state with more"
    ):
        learner.learn(write_csv(tmp_path / "2.csv", rows))


def test_folders_that_are_no_state(tmp_path):
    for call in (Learner(tmp_path).evaluate, Learner(tmp_path).inspect, Learner(tmp_path).summary):
        with pytest.raises(FrompError, match="holds no state; learn a first month into it"):
            call()
    (tmp_path / "manifest.json").write_text('{"kind": "other"}')
    with pytest.raises(CheckpointError, match="holds 'other', not 'fromp-learn'"):
        Learner(tmp_path).learn(month(tmp_path, 0), "churn")


def test_one_process_at_a_time(january):
    with alone(january / "state"), pytest.raises(FrompError, match="is in use by another process"):
        Learner(january / "state").forget("month-0")


def test_a_failure_while_writing_leaves_the_month_before(january, tmp_path, monkeypatch):
    before = contents(january / "state")

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(learner.Saved, "write", full)
    with pytest.raises(FrompError, match="No space"):
        Learner(january / "state").learn(month(tmp_path, 1), tau=1.0)
    with pytest.raises(FrompError, match="No space"):
        Learner(tmp_path / "new").learn(month(tmp_path, 1), "churn", epochs=1)
    assert contents(january / "state") == before
    assert not (tmp_path / "new").exists()


def test_a_folder_that_was_there_stays(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "note").write_text("mine")
    with pytest.raises(DataError):
        Learner(tmp_path / "state").learn(month(tmp_path, 0, rows=5), "churn")
    assert {*os.listdir(tmp_path / "state")} <= {"note", LOCK}
