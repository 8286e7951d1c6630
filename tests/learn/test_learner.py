"""Months learned one after another, each in a learner of its own, as if in another process."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from oracles.months import COLUMNS, blinking, customers, month, write_csv
from pyarrow import ipc, parquet
from torch import nn

from fromp.foundation.errors import FrompError
from fromp.learn import Learner, fitting
from fromp.learn.month import opened
from fromp.learn.saved import Saved

QUICK = {"epochs": 3, "hidden": [16], "memory_size": 12}
NETWORK = """
from torch import nn

def build(input_shape, num_outputs):
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.Tanh(), nn.Linear(8, num_outputs))
"""


def two_months(folder: Path, rows: int = 60, **options) -> Learner:
    Learner(folder / "state").learn(month(folder, 0, rows), "churn", **{**QUICK, **options})
    Learner(folder / "state").learn(month(folder, 1, rows), tau=1.0)
    return Learner(folder / "state")


def test_months_are_learned_and_evaluated(tmp_path):
    learner = two_months(tmp_path, rows=200, epochs=20)
    evaluation = learner.evaluate()
    assert [row["name"] for row in evaluation.rows] == ["month-0", "month-1"]
    assert evaluation.metric == "accuracy"
    assert all(row["score"] >= 75 for row in evaluation.rows), evaluation
    assert [row["held_out"] for row in evaluation.rows] == [m.held_out for m in learner.months]
    assert [len(m.scores) for m in learner.months] == [1, 2]
    assert evaluation.rows[1]["score"] == pytest.approx(learner.months[1].scores[1])  # the state is what was evaluated
    assert str(evaluation).splitlines()[0] == "accuracy, %"


def test_the_penalty_holds_the_months_before(tmp_path):
    """The second month turns the label around: without the penalty the first is lost."""
    turned = [[*row[:2], "gold", "no" if row[-1] == "yes" else "yes"] for row in customers(1, 200)]
    lost = {}
    for tau in (0.0, 1.0):
        state = tmp_path / f"state-{tau}"
        Learner(state).learn(month(tmp_path, 0, 200), "churn", epochs=40, memory_size=40)
        Learner(state).learn(write_csv(tmp_path / "turned.csv", turned), tau=tau)
        first, second = (row["score"] for row in Learner(state).evaluate().rows)
        assert second > 75
        lost[tau] = Learner(state).months[0].scores[0] - first
    assert lost[0.0] > 15
    assert lost[1.0] < lost[0.0] / 2


def test_settings_are_chosen_on_rows_that_are_not_tested_on(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "LENGTHS", (1, 3, 9))
    learner = Learner(tmp_path / "state")
    first = learner.learn(month(tmp_path, 0), "churn", hidden=[8], memory_size=12)
    assert {tau for _, tau, _ in first.tried} == {1.0}
    assert first.epochs == min(first.tried, key=lambda one: one[2])[0]
    second = learner.learn(month(tmp_path, 1))
    assert [tau for _, tau, _ in second.tried] == [0.1, 1.0, 10.0]
    assert f"tau {second.tau:g} (the best of 0.1, 1, 10 on held-out rows)" in learner.summary()
    assert {epochs for epochs, _, _ in second.tried} == {first.epochs}
    assert second.tau == min(second.tried, key=lambda one: one[2])[1]


def test_scales_of_columns_do_not_matter(tmp_path):
    """The same month with a column in other units ends at the same predictions."""
    rows = customers(0)
    for name, scale in (("a", 1.0), ("b", 1e-7)):
        scaled = [[row[0], repr(float(row[1]) * scale), *row[2:]] for row in rows]
        Learner(tmp_path / name).learn(write_csv(tmp_path / f"{name}.csv", scaled), "churn", epochs=3)
    a, b = (Learner(tmp_path / name).predict(tmp_path / f"{name}.csv").columns["p(yes)"] for name in "ab")
    assert np.allclose(a, b, atol=1e-4)


def test_unseen_categories_and_missing_cells_are_counted(tmp_path):
    learner = Learner(tmp_path / "state")
    learner.learn(month(tmp_path, 0), "churn", **QUICK)
    rows = customers(1)
    rows[0][2], rows[1][1], rows[2][1] = "enterprise", "", "NaN"
    second = learner.learn(write_csv(tmp_path / "february.csv", rows), tau=1.0)
    assert second.replaced == {
        "not a category of the first month": {"plan": 1},
        "missing, replaced by the first month's median": {"income": 2},
    }


def test_new_classes_are_added_and_the_old_ones_are_held(tmp_path):
    draw = np.random.default_rng(0)
    centres = {"a": (0, 0), "b": (4, 0), "c": (0, 4), "d": (4, 4)}

    def rows(names):
        return [[*map(repr, map(float, draw.normal(centres[n], 0.7))), n] for n in names * 40]

    learner = Learner(tmp_path / "state")
    learner.learn(write_csv(tmp_path / "1.csv", rows(["a", "b"]), ["x", "y", "kind"]), "kind", epochs=30)
    second = learner.learn(write_csv(tmp_path / "2.csv", rows(["c", "d"]), ["x", "y", "kind"]), tau=1.0)
    assert second.new_classes == ["c", "d"]
    assert [row["score"] > 85 for row in learner.evaluate().rows] == [True, True], learner.evaluate()
    predictions = learner.predict(tmp_path / "1.csv").columns
    assert [*predictions] == ["row", "kind", "p(a)", "p(b)", "p(c)", "p(d)"]


def test_a_quantity_is_a_regression(tmp_path):
    rows = [[*row[:3], f"{1000 + 3 * float(row[0]) + float(row[1]) / 1e5:.2f}"] for row in customers(0, 200)]
    learner = Learner(tmp_path / "state")
    first = learner.learn(write_csv(tmp_path / "1.csv", rows, [*COLUMNS[:3], "price"]), "price", epochs=60)
    rows = [[*row[:3], f"{1000 + 3 * float(row[0]) + float(row[1]) / 1e5:.2f}"] for row in customers(1, 200)]
    learner.learn(write_csv(tmp_path / "2.csv", rows, [*COLUMNS[:3], "price"]), tau=1.0)
    assert first.scores[0] < 15  # of a standard deviation near 60
    assert learner.evaluate().metric == "root mean square error"
    assert all(row["score"] < 15 for row in learner.evaluate().rows)
    predicted = np.array([float(value) for value in learner.predict(tmp_path / "2.csv").columns["price"]])
    assert np.corrcoef(predicted, [float(row[3]) for row in rows])[0, 1] > 0.95


def as_parquet(folder: Path, number: int) -> Path:
    columns = dict(zip(COLUMNS, map(list, zip(*customers(number), strict=True)), strict=True))
    columns["age"] = pyarrow.array([float(value) for value in columns["age"]])
    parquet.write_table(pyarrow.table(columns), folder / f"{number}.parquet")
    return folder / f"{number}.parquet"


def as_npz(folder: Path, number: int) -> Path:
    rows = customers(number)
    x = np.array([[float(row[0]), float(row[1])] for row in rows])
    np.savez(folder / f"{number}.npz", x=x, plan=np.array([row[2] for row in rows]), y=[row[3] for row in rows])
    return folder / f"{number}.npz"


def as_saved_dataset(folder: Path, number: int) -> Path:
    """As `datasets` lays it out on disk, with the label as a ClassLabel."""
    place = folder / f"{number}.saved"
    place.mkdir()
    rows = customers(number)
    columns = {name: [row[k] for row in rows] for k, name in enumerate(COLUMNS[:3])}
    table = pyarrow.table({**columns, "churn": [int(row[3] == "yes") for row in rows]})
    with (place / "data-00000-of-00001.arrow").open("wb") as file, ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    (place / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    (place / "dataset_info.json").write_text(
        '{"features": {"churn": {"names": ["no", "yes"], "_type": "ClassLabel"}, "age": {"dtype": "string"}}}'
    )
    return place


@pytest.mark.parametrize(
    ("write", "label"),
    [(month, "churn"), (as_parquet, "churn"), (as_npz, None), (as_saved_dataset, "churn"), (blinking, None)],
)
def test_every_format(tmp_path: Path, write: Callable[[Path, int], Path], label: str | None):
    learner = Learner(tmp_path / "state")
    learner.learn(write(tmp_path, 0), label, epochs=2, memory_size=8)
    learner.learn(write(tmp_path, 1), tau=1.0)
    evaluation = learner.evaluate()
    assert [row["score"] is not None for row in evaluation.rows] == [True, True]
    assert "above" in learner.predict(write(tmp_path, 2)).columns["class"] if write is blinking else True
    names = learner._saved().label.names
    assert names == (("above", "below") if write is blinking else ("no", "yes"))


def test_images_are_learned_by_a_cnn_and_a_grey_month_fits_a_stream_in_colour(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    y = np.arange(40) % 2
    x[y == 1, :4] //= 4
    np.savez(tmp_path / "colour.npz", x=x, y=y)
    np.savez(tmp_path / "grey.npz", x=x[..., :1].transpose(0, 3, 1, 2), y=y)
    learner = Learner(tmp_path / "state")
    learner.learn(tmp_path / "colour.npz", epochs=10, memory_size=8)
    assert learner._saved().encoding.shape == (3, 8, 8)
    assert str(learner._saved().network) == "cnn 16,32"
    learner.learn(tmp_path / "grey.npz", tau=1.0)
    assert learner.evaluate().rows[0]["score"] > 80


def test_a_network_of_ones_own_is_named_each_time_and_not_kept(tmp_path):
    file = tmp_path / "my_net.py"
    file.write_text(NETWORK)
    Learner(tmp_path / "state", file).learn(month(tmp_path, 0), "churn", epochs=2, memory_size=8)
    Learner(tmp_path / "state", file).learn(month(tmp_path, 1), tau=1.0)
    assert len(Learner(tmp_path / "state", file).evaluate().rows) == 2
    for path in (tmp_path / "state").iterdir():
        assert b"my_net" not in path.read_bytes()
        assert b"Tanh" not in path.read_bytes()
    with pytest.raises(FrompError, match="with a network of one's own; name its Python file"):
        Learner(tmp_path / "state").evaluate()
    file.write_text(NETWORK.replace("8", "9"))
    with pytest.raises(FrompError, match=r"'0.weight' is \(9, 6\) in the network, \(8, 6\) in the saved one"):
        Learner(tmp_path / "state", file).evaluate()


def test_predictions_are_written(tmp_path):
    learner = two_months(tmp_path)
    unlabelled = write_csv(tmp_path / "march.csv", [row[:-1] for row in customers(2)], COLUMNS[:-1])
    learner.predict(unlabelled).write(tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "row,churn,p(no),p(yes)"
    assert len(lines) == 61
    number, said, no, yes = lines[1].split(",")
    assert number == "1"
    assert said == ("no" if float(no) > float(yes) else "yes")
    assert float(no) + float(yes) == pytest.approx(1, abs=1e-5)
    learner.predict(unlabelled).write(tmp_path / "out.parquet")
    assert parquet.read_table(tmp_path / "out.parquet").column_names == lines[0].split(",")
    with pytest.raises(FrompError, match=r"out.txt ends in '.txt'; write predictions to .csv or .parquet"):
        learner.predict(unlabelled).write(tmp_path / "out.txt")


def test_evaluation_says_what_can_no_longer_be_known(tmp_path):
    learner = two_months(tmp_path)
    (tmp_path / "month-0.csv").unlink()
    month(tmp_path, 1, rows=50)
    gone, changed = learner.evaluate().rows
    assert (gone["score"], gone["note"]) == (None, "file gone")
    assert (changed["score"], changed["note"]) == (None, "file changed")
    assert gone["score_at_memory"] is not None
    assert gone["score_when_learned"] == learner.months[0].scores[0]
    third = learner.learn(month(tmp_path, 2), tau=1.0)
    assert third.scores[:2] == [None, None]
    (row,) = learner.evaluate(month(tmp_path, 3)).rows
    assert (row["held_out"], row["note"]) == (60, "all rows")
    (row,) = learner.evaluate(tmp_path / "month-2.csv").rows
    assert (row["held_out"], row["note"]) == (third.held_out, "held-out part")


def test_inspection_shows_examples_in_the_units_of_the_file(tmp_path):
    learner = two_months(tmp_path)
    first = learner.inspect().rows[0]
    assert first["points"] == 12
    assert sum(first["classes"].values()) == 12
    rows = {(f"{float(age):.4g}", f"{float(income):.4g}", plan, churn) for age, income, plan, churn in customers(0)}
    for example in first["examples"]:
        assert (*example["inputs"].values(), example["label"]) in rows
    scores = [example["score"] for example in first["examples"]]
    assert scores == sorted(scores, reverse=True)
    assert "enterprise" not in learner.inspect().examples("month-0")
    assert max(map(len, str(learner.inspect()).splitlines())) <= 80
    with pytest.raises(FrompError, match="there is no month 'may'; there are month-0, month-1"):
        learner.inspect().examples("may")


def test_the_drift_is_that_of_the_last_month(tmp_path):
    """Learning fixes the answers anew, so that the drift since then would always be 0."""
    learner = two_months(tmp_path)
    (moved,) = learner.months[-1].drift
    assert moved > 0
    assert [row["drift"] for row in learner.evaluate().rows] == [moved, None]
    assert [row["drift"] for row in learner.inspect().rows] == [moved, None]


def test_forgetting_removes_examples_and_months_from_the_state(tmp_path):
    learner = two_months(tmp_path)
    examples = learner.inspect().rows[0]["examples"]
    index = examples[0]["index"]
    reg = opened(learner._saved(), None)
    value = reg.memories[0].inputs[index, 1:2].numpy().tobytes()
    files = lambda: b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())  # noqa: E731
    assert value in files()
    learner.forget("month-0", [index])
    assert value not in files()
    assert learner.inspect().rows[0]["points"] == 11
    learner.forget("month-0")
    assert [row["points"] for row in learner.inspect().rows] == [0, 12]
    row = learner.evaluate().rows[0]
    assert (row["note"], row["drift"]) == ("memory forgotten", None)
    assert row["score"] is not None
    with pytest.raises(FrompError, match="nothing is remembered of a month 'month-0'; there are month-1"):
        learner.forget("month-0")
    learner.forget("month-1", range(12))
    assert not any(month.remembered for month in learner.months)
    learner.learn(month(tmp_path, 2), tau=1.0)
    assert [m.remembered for m in learner.months] == [False, False, True]
    assert learner.months[-1].drift == [None, None]


def test_a_month_kept_small_and_one_with_a_budget_of_its_own(tmp_path):
    learner = Learner(tmp_path / "state")
    learner.learn(month(tmp_path, 0), "churn", epochs=1)  # 200 points asked for, of 48 to learn from
    learner.learn(month(tmp_path, 1), tau=1.0, memory_size=4)
    assert [row["points"] for row in learner.inspect().rows] == [12, 4]


def test_the_state_is_private_and_what_the_caller_has_stays(tmp_path):
    before = torch.random.get_rng_state()
    two_months(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)
    for path in (tmp_path / "state").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0
    saved = Saved.read(tmp_path / "state")
    assert isinstance(opened(saved, None).model, nn.Module)
    names = re.findall(r"\w+", str([path.name for path in (tmp_path / "state").iterdir()]))
    assert "pt" not in names


def test_the_same_seed_gives_the_same_state(tmp_path):
    a, b = (two_months(tmp_path / name) for name in "ab" if (tmp_path / name).mkdir() is None)
    first, second = a._saved(), b._saved()
    assert all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)
