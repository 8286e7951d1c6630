"""The notebooks of examples/notebooks are kept with their outputs, and print the same when they are run."""

import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
MACHINE_PATH = re.compile(r"(?<![\w.~/])/(?:work|root|home|tmp|Users|mnt|var|opt)/\w")
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e-?\d+)?(?: points)?")
TOLERANCE = 0.05  # share by which another machine's fractions may differ, or this much if they are below 1
POINTS = 1.0  # by which its differences of two accuracies may


def same(one: str, other: str) -> bool:
    """The same text and whole numbers, and fractions that are close."""
    texts, numbers = ([NUMBER.sub("#", text).split() for text in (one, other)], map(NUMBER.findall, (one, other)))
    return texts[0] == texts[1] and all(near(a, b) for a, b in zip(*numbers, strict=True))


def near(one: str, other: str) -> bool:
    """The same number, or fractions that are close."""
    values = [float(number.removesuffix(" points")) for number in (one, other)]
    apart, most = abs(values[0] - values[1]), POINTS if one.endswith("points") else TOLERANCE
    return one == other or ("." in one + other and apart <= max(most, TOLERANCE * abs(values[1])))


def test_there_are_four():
    assert {path.stem for path in NOTEBOOKS} == {"images", "text", "tables", "methods"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_with_its_outputs_and_without_the_machine(path):
    notebook = json.loads(path.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    assert sum(bool(cell["outputs"]) for cell in code) >= 2
    assert not MACHINE_PATH.search(path.read_text())
    for cell in notebook["cells"]:
        for target in re.findall(r"\]\((\.[^)#]+)", "".join(cell["source"])):
            assert (path.parent / target).exists(), target


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_prints_what_is_kept(path):
    import nbformat
    from notebooks import executed, printed

    kept = printed(nbformat.read(path, as_version=4))
    for number, (now, before) in enumerate(zip(printed(executed(path)), kept, strict=True), 1):
        assert same(now, before), f"{path.name}, cell {number} printed {now!r}, kept is {before!r}"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("after a 95.0 %", "after a 93.8 %", True), ("after a 95.0 %", "after a 89.8 %", False), ("a 1", "b 1", False),
        ("38 rows", "39 rows", False), ("1 and 2", "1 and", False), ("drift 0.03", "drift 0.05", True),
        ("drift 0.03", "drift 0.10", False), ("score 100", "score 98.2", True), ("-1.04 points", "-1.25 points", True),
        ("-1.04 points", "-2.25 points", False),
    ],
)  # fmt: skip
def test_another_output_is_seen(one, other, expected):
    assert same(one, other) is expected
