"""Numbers of an accuracy matrix, worked out by hand."""

import io
from dataclasses import asdict

import pytest
from rich.console import Console

from fromp.lab.results import metrics
from fromp.lab.results.format import Table, about, deviation, duration, matrix_table, percent

MATRIX = [[0.9], [0.8, 1.0], [0.7, 0.9, 0.6]]


def test_metrics_on_a_matrix_worked_out_by_hand():
    assert metrics.average_accuracy(MATRIX) == pytest.approx((0.7 + 0.9 + 0.6) / 3)
    assert metrics.backward_transfer(MATRIX) == pytest.approx(((0.7 - 0.9) + (0.9 - 1.0)) / 2)
    assert metrics.forward_transfer(MATRIX, [0.5, 0.9, 0.7]) == pytest.approx(((1.0 - 0.9) + (0.6 - 0.7)) / 2)
    assert metrics.forgetting(MATRIX) == pytest.approx(((0.9 - 0.7) + (1.0 - 0.9)) / 2)
    assert metrics.backward_transfer([[0.9]]) is None
    summary = metrics.summarise([1.0, 2.0, 3.0, 4.0])
    assert asdict(summary) == pytest.approx({"mean": 2.5, "std": 1.2909944, "stderr": 0.6454972, "n": 4})
    assert metrics.summarise([]) is None


def test_where_only_the_last_task_was_trained_there_is_an_accuracy_and_no_transfer():
    matrix = [None, None, MATRIX[-1]]
    assert metrics.average_accuracy(matrix) == metrics.average_accuracy(MATRIX)
    assert metrics.backward_transfer(matrix) is None
    assert metrics.forward_transfer(matrix, [0.5, 0.9, 0.7]) is None
    assert metrics.forgetting(matrix) is None
    assert metrics.average_accuracy([None]) is None
    assert metrics.average_accuracy([]) is None


def test_numbers_as_text():
    assert percent(metrics.summarise([0.99, 0.98])) == "98.50 ± 0.50"
    assert percent(metrics.summarise([-0.00001])) == "0.00"
    assert percent(None) == deviation(None) == deviation(metrics.summarise([0.5])) == ""
    assert [duration(seconds) for seconds in (59.4, 90, 5400)] == ["59 s", "1.5 min", "1.5 h"]
    assert [about(seconds) for seconds in (0.1, 120, 7200)] == ["about 1 s", "about 2 min", "about 2 h"]


def test_a_matrix_as_a_table_has_an_empty_row_where_nothing_was_trained():
    table = matrix_table([None, [0.5, 1.0]])
    assert table.rows == [["task 1", "", "", ""], ["task 2", "50.0", "100.0", "75.00"]]
    assert table.csv() == "after,task 1,task 2,average\ntask 1,,,\ntask 2,50.0,100.0,75.00\n"
    assert table.markdown().splitlines()[1] == "|---|---:|---:|---:|"


def test_a_table_of_results_fits_eighty_columns_with_every_number_whole():
    heads = ("method", "average accuracy", "paper", "backward transfer", "forgetting", "seeds", "time per seed")
    rows = [["vcl-memorable", "61.59 ± 0.31", "99.6 ± 0.2", "-44.18 ± 1.21", "44.18 ± 1.21", "10", "3.1 min"]]
    file = io.StringIO()
    Console(file=file, width=80).print(Table(heads, rows).terminal("toy"))
    assert all(len(line.rstrip()) <= 80 for line in file.getvalue().splitlines())
    assert all(cell in file.getvalue() for cell in rows[0])
