"""report.html of a stream: what it shows, what it must not, and how it looks in a browser."""

import re

import pytest
from oracles.browser import look, needs_browser
from oracles.months import blinking, customers, month, write_csv

from fromp.learn import Learner
from fromp.learn.charts import over_months

QUICK = {"epochs": 2, "hidden": [8], "memory_size": 8}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    rows = customers(1)
    rows[0][2], rows[1][1] = "<script>alert(1)</script>", ""
    Learner(folder / "state").learn(month(folder, 0), "churn", name="<b>january</b>", **QUICK)
    Learner(folder / "state").learn(write_csv(folder / "1.csv", rows), name="february", tau=1.0)
    return folder / "state" / "report.html"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    Learner(folder / "state").learn(blinking(folder, 0), epochs=2, hidden=[2], memory_size=8)
    return folder / "state" / "report.html"


def test_it_shows_scores_drift_and_memory(table):
    page, learner = table.read_text(), Learner(table.parent)
    for score in learner.months[-1].scores:
        assert f"<td>{score:.1f}</td>" in page
    assert "<h3>Drift</h3>" in page
    assert "8 of 60 rows" in page
    assert "cells not a category of the first month: plan 1." in page
    example = learner.inspect().rows[0]["examples"][0]
    assert f"<td>{example['inputs']['age']}</td>" in page


def test_names_and_cells_are_escaped(table):
    page = table.read_text()
    assert "&lt;b&gt;january&lt;/b&gt;" in page
    assert "<b>january</b>" not in page
    assert "<script>alert" not in page


def test_it_refers_to_nothing_outside(table, images):
    for page in (table.read_text(), images.read_text()):
        assert all(address.startswith("data:") for address in re.findall(r'(?:src|href)="(.*?)"', page))


def test_what_is_forgotten_is_gone_from_it(images):
    pictures = set(re.findall(r'src="(data:image/png.*?)"', images.read_text()))
    assert len(pictures) == 8
    learner = Learner(images.parent)
    first = learner.inspect().rows[0]["examples"][0]["index"]
    learner.forget("images-0", [first])
    assert len(set(re.findall(r'src="(data:image/png.*?)"', images.read_text())) & pictures) == 7


def test_images_have_the_pixels_of_their_files(tmp_path):
    import base64
    import io

    import numpy as np
    from PIL import Image

    folder = blinking(tmp_path, 0)
    Learner(tmp_path / "state").learn(folder, epochs=1, hidden=[2], memory_size=4)
    files = {np.asarray(Image.open(file)).tobytes() for file in folder.rglob("*.png")}
    page = (tmp_path / "state" / "report.html").read_text()
    for data in re.findall(r'src="data:image/png;base64,(.*?)"', page):
        assert np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))).tobytes() in files


def test_a_chart_has_a_line_per_month_and_honest_bounds():
    chart = over_months("Accuracy", "", ["a", "b", "c"], [[90.0], [80.0, 95.0], [None, 94.0, 99.0]], 100.0)
    assert [len(line.points) for line in chart.lines] == [2, 2, 1]
    assert [text for _, text in chart.up] == ["80", "85", "90", "95", "100"]
    assert chart.lines[0].points[1].said == "a after b: 80"
    assert over_months("Accuracy", "", ["a"], [[99.9]], 100.0).up[0][1] == "90"  # a tenth is not drawn as a change
    assert over_months("Drift", "", ["a"], [[]]) is None
    assert [text for _, text in over_months("Drift", "", ["a"], [[0.0]]).up] == ["0", "1"]
    many = over_months("Accuracy", "", [f"m{k}" for k in range(30)], [[50.0]] * 30, 100.0)
    assert len(many.across) <= 8


@needs_browser
@pytest.mark.parametrize("width", [390, 1100])
@pytest.mark.parametrize("what", ["table", "images"])
def test_it_fits_a_phone_and_a_desk(what, width, tmp_path, request):
    found = look(request.getfixturevalue(what), tmp_path, width)
    assert found["overflow"] <= 0
    assert found["beyond"] == []
