"""The tables in the documents say what the results say, and so do the numbers in the text beside them."""

import json
import math
import re
import shutil
from pathlib import Path

import fill_tables
import pytest
from fill_tables import MARK, documents, table, update

from fromp.foundation.errors import FrompError
from fromp.lab.benchmarks.catalogue import BENCHMARKS, RELEASED_TOY
from fromp.lab.methods import METHODS
from fromp.lab.paper.exhibits import EXHIBITS
from fromp.lab.results import selection
from fromp.lab.results.plan import Plan
from fromp.lab.results.store import find

ROOT = Path(__file__).parents[2]
MACHINE_PATH = re.compile(r"(?<![\w.~/])/(?:work|root|home|tmp|Users|mnt|var|opt)/\w")
TABLE = re.compile(r"<!-- table: .+? -->\n.*?<!-- end -->", re.S)


def write_results(root, benchmark, name, accuracies, method="fromp", **changes):
    runs = [
        {"seed": seed, "accuracy": [[accuracy]], "average_accuracy": accuracy, "seconds": 21.0, "tasks": 1}
        for seed, accuracy in enumerate(accuracies)
    ]
    found = {**Plan.of(benchmark, method, **changes).as_json(), "environment": {}, "runs": runs}
    path = root / "results" / benchmark / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "results.json").write_text(json.dumps({**found, "summary": {}}))


@pytest.fixture
def root(tmp_path):
    """The documents, filled from the kept results but for the toy's."""
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(ROOT / "results", tmp_path / "results", ignore=shutil.ignore_patterns("seeds", "first-task"))
    write_results(tmp_path, "toy", "fromp", [0.99, 0.98])
    write_results(tmp_path, "toy", "fromp-released", [0.9], **RELEASED_TOY)
    update(tmp_path)
    return tmp_path


def rows(root, mark):
    """The cells of a table by the first of each row, without backticks."""
    lines = [line for line in table(mark, root, root / "results").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return {row[0].replace("`", ""): dict(zip(cells[0], row, strict=True)) for row in cells[2:]}


def test_no_document_is_stale():
    stale = [str(path.relative_to(ROOT)) for path in update(ROOT, check=True)]
    assert not stale, f"{stale} differ from results/; run `make docs`"


def test_a_changed_result_is_noticed(root):
    changed = [root / "docs" / "lab" / "results.md", root / "results" / "toy" / "README.md"]
    assert update(root, check=True) == []
    write_results(root, "toy", "fromp", [0.99, 0.97])
    assert update(root, check=True) == changed
    assert update(root, check=True) == changed  # a check writes nothing
    assert update(root) == changed
    assert update(root, check=True) == []
    write_results(root, "toy", "fromp", [0.95, 0.97])  # the demo is seed 0
    assert update(root) == [root / "README.md", *changed]


def test_a_row_has_the_paper_mean_error_deviation_seeds_and_settings(root):
    found = rows(root, "runs toy fromp fromp-released")
    assert list(found["fromp"].values()) == [
        "`fromp`", "99.6 ± 0.2 (standard deviation, 10 runs)", "98.50 ± 0.50", "0.71", "2", "",
    ]  # fmt: skip
    assert list(found["fromp-released"].values())[1:5] == ["", "90.00", "", "1"]  # one seed has no spread
    changed = set(found["fromp-released"]["settings changed"].split(", "))
    assert changed == {"`tau=1`", "`lr=0.01`", "`jitter=0.001`", "`schedule=constant`"}


def test_all_runs_of_a_benchmark_are_listed_and_what_the_paper_alone_has(root):
    found = rows(root, "runs split-cifar")
    assert {path.parent.name for path in (ROOT / "results" / "split-cifar").glob("*/results.json")} < set(found)
    assert found["vcl-coreset"]["paper"].startswith("67.4")
    assert found["vcl-coreset"]["here: mean ± standard error"] == "not run"


def test_the_summary_has_the_paper_in_a_second_line(root):
    found = rows(root, "summary toy,split-mnist fromp ewc vcl-memorable")
    assert found["fromp"]["toy"] == "98.50 ± 0.50 (2)<br>paper 99.6 ± 0.2"
    assert found["vcl-memorable"]["split-mnist"] == "–"
    shutil.rmtree(root / "results" / "split-mnist" / "ewc")
    assert rows(root, "summary toy,split-mnist ewc")["ewc"]["split-mnist"] == "–<br>paper 63.1"


def test_the_first_seed_is_what_the_demo_promises(root):
    kept = find(root / "results" / "toy" / "finetune")[0]
    plain = next(seed for seed in kept.finished if seed.seed == 0)
    seconds = 21.0 + min(seed.seconds for seed in kept.finished)
    text = (root / "README.md").read_text()
    assert f"about {10 * math.ceil(seconds / 10)} seconds" in text
    assert f"ends with {100 * plain.average_accuracy:.1f} % over the five tasks, FROMP with 99.0 %" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- table: nonsense -->\n<!-- end -->\n", "unknown table 'nonsense'; known: runs"),
        ("<!-- table: by-task -->\n<!-- end -->\n", "by-task -->: missing a required argument: 'benchmark'"),
        ("<!-- table: exhibits -->\n", "'exhibits' is not closed"),
        ("<!-- table: exhibits -->\n<!-- table: presets -->\n<!-- end -->\n", "'exhibits' is not closed"),
    ],
)
def test_a_wrong_mark_is_an_error(root, text, message):
    (root / "docs" / "library" / "scaling.md").write_text(text)
    with pytest.raises(FrompError, match=message):
        update(root)


def test_text_outside_the_tables_stays(root):
    def outside(path):
        return TABLE.sub("", path.read_text())

    for path in documents(ROOT):
        assert outside(root / path.relative_to(ROOT)) == outside(path)


def test_every_benchmark_with_results_has_its_tables():
    marks = [mark.split() for path in documents(ROOT) for mark in MARK.findall(path.read_text())]
    shown = {name for words in marks if words[0] == "runs" for name in words[1].split(",")}
    assert shown >= {path.parent.parent.name for path in ROOT.glob("results/*/*/results.json")}
    tried = {words[1] for words in marks if words[0] == "tried"}
    assert tried == {path.parent.name for path in ROOT.glob("results/*/selection.json")}


def test_accuracies_in_the_text_stand_in_a_table():
    """Numbers with two decimals in docs/lab/results.md, which is written by hand between its tables."""
    text = (ROOT / "docs" / "lab" / "results.md").read_text()
    tables = "".join(match[0] for path in documents(ROOT) for match in TABLE.finditer(path.read_text()))
    typed = set(re.findall(r"(?<![\d.])-?\d{1,2}\.\d\d(?!\d)", TABLE.sub("", text)))
    measured = set(re.findall(r"(?<![\d.])-?\d{1,2}\.\d\d(?!\d)", tables))
    assert len(typed) > 30
    assert typed - measured - {"0.01", "0.05", "0.99"} == set()  # settings


def test_results_are_a_page_not_a_book():
    lines = (ROOT / "docs" / "lab" / "results.md").read_text().splitlines()
    assert len(lines) <= 250
    assert len(" ".join(lines).split()) <= 3500


def test_settings_were_chosen_on_seeds_of_their_own():
    """Unlike the numbers that are reported, as results/toy/README.md says."""
    reported = {
        run["seed"] for path in ROOT.glob("results/toy/*/results.json") for run in json.loads(path.read_text())["runs"]
    }
    tried = [one for one in selection.read(ROOT / "results" / "toy" / "selection.json") if "/" not in one.name]
    chosen_on = {seed.seed for one in tried for seed in one.seeds}
    assert len(tried) == 6
    assert not chosen_on & reported


def kept_files():
    results = [path for kind in ("json", "csv", "md") for path in (ROOT / "results").rglob(f"*.{kind}")]
    results = [path for path in results if "seeds" not in path.parts and "first-task" not in path.parts]
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *results]


def test_no_path_of_a_machine_is_kept():
    found = {
        str(path.relative_to(ROOT)): match[0]
        for path in kept_files()
        if (match := MACHINE_PATH.search(path.read_text()))
    }
    assert not found
    assert MACHINE_PATH.search("fromp run toy --out /home/me/runs")
    assert not MACHINE_PATH.search("see https://example.org/home/page and a/tmp/b")


def test_forward_transfer_comes_from_the_networks_trained_alone(root):
    for method, accuracy in {"fromp": [[0.9], [0.8, 0.9]], "separate": [[0.9], [0.9, 0.95]]}.items():
        write_results(root, "split-mnist", method, [0.9], method)
        path = root / "results" / "split-mnist" / method / "results.json"
        found = json.loads(path.read_text())
        found["runs"][0] |= {"accuracy": accuracy, "tasks": 2, "backward_transfer": -0.1}
        path.write_text(json.dumps({**found, "summary": {}}))
    found = rows(root, "runs split-mnist fromp")["fromp"]
    assert (found["backward transfer"], found["forward transfer"]) == ("-10.00", "-5.00")
    assert found["paper's backward transfer"].startswith("-0.5 ± 0.2")


def test_every_exhibit_is_listed_with_what_is_kept(root):
    found = rows(root, "exhibits")
    assert set(found) == set(EXHIBITS)
    assert list(found["figure-toy"].values())[1:4] == ["Fig. 5", "the toy after tasks 1, 2 and 5", "2 of 10"]


def test_a_curve_has_every_size_that_was_run(root):
    write_results(root, "permuted-mnist", "memory/frorp-10", [0.7, 0.8], "frorp", memory=10)
    shutil.rmtree(root / "results" / "permuted-mnist" / "memory" / "fromp-20")
    found = rows(root, "curve figure-memory-mnist memory")
    assert list(found) == ["10", "20", "40", "100", "200"]
    assert found["10"]["`frorp`"] == "75.00 ± 5.00 (2)"
    assert found["20"]["`fromp`"] == "–"


def test_accuracy_stands_at_multiples_of_each_setting(root):
    preset = Plan.of("split-digits", "mixed-past").flat()["strength"]
    tried = {"preset": {}, "tenth": {"strength": preset / 10}, "both": {"strength": preset, "memory": 4}}
    for name, changes in tried.items():
        accuracies = [0.9, 0.8] if changes else [0.99, 0.97]
        write_results(root, "split-digits", f"tried/{name}", accuracies, "mixed-past", validation=0.1, **changes)
    kept = root / "results" / "sensitivity" / "split-digits"
    kept.mkdir(parents=True, exist_ok=True)
    selection.write(kept, root / "results" / "split-digits" / "tried")
    found = rows(root, "multiples split-digits strength points_per_step")
    assert found[f"strength={preset:g}"] | {"preset": ""} == {
        "preset": "", "x 0.1": "85.00 ± 5.00 (2)", "x 1": "98.00 ± 1.00 (2)"
    }  # fmt: skip
    assert found["points_per_step=256"]["x 0.1"] == "–"


def test_tables_of_one_head_mark_exactly_the_methods_that_are_told_the_task():
    """And the benchmarks named as such are those whose tasks have no head of their own."""
    for name in ("toy", "permuted-digits", "split-digits"):
        heads = BENCHMARKS[name].stream(0).task(0).head
        assert (heads is None) == (name in fill_tables.ONE_HEAD)
        marked = {method for method in METHODS if "task label" in fill_tables._title(name, method)}
        told = {method for method, card in METHODS.items() if card.needs_task_at_test}
        assert marked == (told if heads is None else set())
