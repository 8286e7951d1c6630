"""What the laboratory knows of a method stands on its card."""

import ast
from pathlib import Path

import fromp
from fromp.lab.methods import METHODS
from fromp.lab.methods.card import places

PACKAGE = Path(fromp.__file__).parent
# The methods themselves, what the paper reports of them, and its tables and figures.
SPEAK_OF_METHODS = ("lab/methods/", "lab/results/published.py", "lab/paper/exhibits.py")
ALLOWED = {
    # The name of the package, the command, a folder or a kind of file.
    ("__main__.py", "fromp"), ("formats.py", "fromp"), ("lab/data/published.py", "fromp"),
    ("lab/report/figures/style.py", "fromp"), ("lab/results/environment.py", "fromp"),
    ("integrations/transformers.py", "fromp"), ("learn/cli.py", "fromp"),
    ("lab/cli.py", "fromp"),  # and the default of --method
    # A series in kept reports of `fromp bench`.
    ("lab/bench/steps.py", "fromp"), ("lab/bench/table.py", "fromp"), ("lab/report/figures/cost.py", "fromp"),
    ("lab/bench/ways.py", "der++"),  # whose step the level ones are compared with
    ("lab/results/record.py", "joint"),  # older files of it alone have accuracies of an untrained network
}  # fmt: skip


def test_no_method_is_known_by_name_outside_its_card():
    found = set()
    for file in PACKAGE.rglob("*.py"):
        place = file.relative_to(PACKAGE).as_posix()
        if not place.startswith(SPEAK_OF_METHODS):
            every = (node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant))
            found |= {(place, value) for value in every if isinstance(value, str) and value in METHODS}
    assert found == ALLOWED


def test_every_method_looks_the_same_in_every_figure_and_like_no_other():
    colours = [card.colour for card in METHODS.values()]
    assert None not in colours
    assert len(set(colours)) == len(colours)
    assert places(["ewc", "fromp"]) == [METHODS["ewc"].colour, METHODS["fromp"].colour]
    twice = places(["fromp", "fromp", "of a plug-in"])
    assert twice[0] == METHODS["fromp"].colour
    assert len(set(twice)) == 3
    assert not {*twice[1:]} & {*colours}
