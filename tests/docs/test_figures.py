"""Figures of the documents: sharp enough for a slide, small enough for a clone, and each shown somewhere."""

import re
from pathlib import Path

import pytest
from fill_tables import documents
from PIL import Image

from fromp.lab.report.figures.style import PIXELS

ROOT = Path(__file__).parents[2]
FIGURES = sorted((ROOT / "docs" / "figures").glob("*.*"))
PHONE = "report-phone"  # two pages beside each other, each as wide as a phone at twice the pixels


@pytest.mark.parametrize("path", [path for path in FIGURES if path.suffix == ".png"], ids=lambda path: path.stem)
def test_a_figure_is_sharp(path):
    with Image.open(path) as picture:
        assert picture.width >= (PIXELS if path.stem != PHONE else 1000), picture.size


def test_figures_are_small_and_shown():
    assert len(FIGURES) > 15
    text = "".join(path.read_text() for path in documents(ROOT))
    shown = set(re.findall(r"figures/([\w.-]+)\)", text))
    assert {path.name for path in FIGURES} == {name for name in shown if "/" not in name}
    assert all(path.stat().st_size < 2**20 for path in FIGURES)
