"""The tables in the documents say what the results say."""

import json
import re
import shutil
from pathlib import Path

import fill_tables
import pytest
from fill_tables import BLOCKS, OPENING, update

from fromp.foundation.errors import FrompError
from fromp.lab.benchmarks.catalogue import BENCHMARKS, RELEASED_TOY, as_json, settings_for
from fromp.lab.methods.registry import METHODS
from fromp.lab.paper.exhibits import EXHIBITS
from fromp.lab.results import selection
from fromp.lab.results.store import summary

ROOT = Path(__file__).parents[2]
MACHINE_PATH = re.compile(r"(?<![\w.~/])/(?:work|root|home|tmp|Users|mnt|var|opt)/\w")


def write_results(root, benchmark, name, accuracies, method="fromp", **changes):
    runs = [
        {"seed": seed, "accuracy": [[accuracy]], "average_accuracy": accuracy, "seconds": 21.0, "tasks": 1}
        for seed, accuracy in enumerate(accuracies)
    ]
    settings = as_json(settings_for(benchmark, changes, method))
    found = {"benchmark": benchmark, "method": method, "settings": settings, "environment": {}, "runs": runs}
    path = root / "results" / benchmark / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "results.json").write_text(json.dumps({**found, "summary": summary(runs)}))


@pytest.fixture
def root(tmp_path):
    """The documents, filled from results of our own."""
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    write_results(tmp_path, "toy", "fromp", [0.99, 0.98])
    write_results(tmp_path, "toy", "fromp-released", [0.9], **RELEASED_TOY)
    update(tmp_path)
    return tmp_path


def test_no_document_is_stale():
    stale = [str(path.relative_to(ROOT)) for path in update(ROOT, check=True)]
    assert not stale, f"{stale} differ from results/; run fill_tables.update"


def test_a_changed_result_is_noticed(root):
    assert update(root, check=True) == []
    write_results(root, "toy", "fromp", [0.99, 0.97])
    assert update(root, check=True) == [root / "docs" / "results.md"]
    assert update(root, check=True) == [root / "docs" / "results.md"]  # a check writes nothing
    assert update(root) == [root / "docs" / "results.md"]
    assert update(root, check=True) == []
    write_results(root, "toy", "fromp", [0.95, 0.97])  # the demo is seed 0
    assert update(root) == [root / "README.md", root / "docs" / "results.md"]


def row(root, title):
    lines = (root / "docs" / "results.md").read_text().splitlines()
    return next([cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith(f"| {title} |"))


def test_a_row_has_the_paper_mean_error_deviation_seeds_and_settings(root):
    assert row(root, "FROMP, and with learning rate 0.003: the preset") == [
        "FROMP, and with learning rate 0.003: the preset",
        "99.6 ± 0.2 (standard deviation, 10 runs)", "98.50 ± 0.50", "0.71", "2", "",
    ]  # fmt: skip
    cells = row(root, "FROMP, released settings")
    assert cells[2:5] == ["90.00", "", "1"]  # one seed has no spread
    assert set(cells[5].split(", ")) == {"`tau=1`", "`lr=0.01`", "`jitter=0.001`", "`schedule=constant`"}


def test_images_a_second_are_those_of_the_steps_and_of_memory_behind_the_first_task(tmp_path):
    assert BLOCKS["split-cifar-rates"](tmp_path / "results") == "No run has said it yet."
    told = {
        "finetune": ([1] * 6, [200] * 5),
        "si": ([], [100] * 5),  # from before threads were counted
        "ewc": ([2] * 6, [100] * 5),
        "fromp": ([2, 1, 1, 1, None, 2], [450, 650, 850, 600, 1000]),  # taken up with more threads
    }
    for method, (threads, seconds) in told.items():
        write_results(tmp_path, "split-cifar", method, [0.7], method)
        path = tmp_path / "results" / "split-cifar" / method / "results.json"
        found = json.loads(path.read_text())
        found["runs"][0] |= {"task_seconds": [9999, *seconds], "task_threads": threads, "environment": {}}
        path.write_text(json.dumps(found))
    found = BLOCKS["split-cifar-rates"](tmp_path / "results")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found.splitlines()[2:]]
    assert lines == [
        ["`finetune`", "0", "1", "5", "2.00", "2000", "1.00 x"],
        ["`ewc`", "0", "2", "5", "2.00", "4000", ""],
        ["`fromp`", "0", "1", "3", "3.12", "1600", "0.80 x"],
        ["`fromp`", "0", "2", "1", "2.00", "2000", ""],
    ]


def test_what_was_not_run_says_so(root):
    assert row(root, "batch Adam (`joint`)")[2:] == ["not run: 5 seeds take about 5 min", "", "", ""]
    assert row(root, "FRORP, with linear decay and jitter 0.01")[2] == "not run"  # which is none of the paper's
    assert row(root, "`ewc`")[1:3] == ["63.1", "not run: 5 seeds take about 4 min"]  # as guessed for this benchmark
    write_results(root, "split-mnist", "fromp", [0.991])
    update(root)
    assert row(root, "`fromp`")[1:3] == ["99.0 ± 0.1 (standard error, 5 runs)", "99.10"]
    assert row(root, "`ewc`")[1:3] == ["63.1", "not run: 5 seeds take about 2 min"]  # as FROMP took


def test_the_first_seed_is_what_the_demo_promises(root):
    assert "about 25 seconds and ends with an average accuracy of 99.0 %" in (root / "README.md").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- generated: nonsense -->\n<!-- end -->\n", "no block 'nonsense'; use one of demo"),
        ("<!-- generated: demo -->\n", "'demo' is not closed"),
        ("<!-- generated: demo -->\n<!-- generated: bench -->\n<!-- end -->\n", "'demo' is not closed"),
    ],
)
def test_a_wrong_mark_is_an_error(root, text, message):
    (root / "docs" / "scaling.md").write_text(text)
    with pytest.raises(FrompError, match=message):
        update(root)


def test_text_outside_the_blocks_stays(root):
    def outside(text):
        return re.sub(r"(<!-- generated: \S+ -->\n).*?(<!-- end -->)", r"\1\2", text, flags=re.S)

    for path in [Path("README.md"), *(path.relative_to(ROOT) for path in sorted((ROOT / "docs").glob("*.md")))]:
        assert outside((root / path).read_text()) == outside((ROOT / path).read_text())


def test_every_reported_benchmark_has_its_place():
    used = OPENING.findall((ROOT / "docs" / "results.md").read_text())
    tables = {"toy-comparison", "toy-variations", "split-mnist", "split-mnist-small", "permuted-mnist", "split-cifar"}
    figures = {"permuted-mnist-memory", "split-mnist-tau", "split-cifar-memory", "split-cifar-11-memory"}
    assert tables | figures <= set(used)
    assert set(used) <= set(BLOCKS)


def test_settings_were_chosen_on_seeds_of_their_own():
    """Unlike the numbers that are reported, as docs/results.md says."""

    reported = {
        run["seed"] for path in ROOT.glob("results/toy/*/results.json") for run in json.loads(path.read_text())["runs"]
    }
    tried = [one for one in selection.read(ROOT / "results" / "toy" / "selection.json") if "/" not in one.name]
    chosen_on = {run["seed"] for one in tried for run in one.runs}
    assert len(tried) == 6
    assert not chosen_on & reported


def kept_files():
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    results = [path for kind in ("json", "csv", "md") for path in (ROOT / "results").rglob(f"*.{kind}")]
    return [*documents, *(path for path in results if "seeds" not in path.parts and "first-task" not in path.parts)]


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
        path.write_text(json.dumps({**found, "summary": summary(found["runs"])}))
    update(root)
    assert row(root, "`fromp`")[6:] == ["-10.00", "-0.5 ± 0.2 (spread of a kind the paper does not name)", "-5.00",
                                        "-0.07 ± 0.05 (spread of a kind the paper does not name)"]  # fmt: skip


def test_every_exhibit_is_listed_with_what_is_kept(root):
    text = BLOCKS["reproduction"](root / "results")
    assert all(f"`{name}`" in text for name in EXHIBITS)
    assert "| `figure-toy` | Fig. 5 | the toy after tasks 1, 2 and 5 | 2 of 10 |" in text


def test_a_curve_has_every_size(root):
    write_results(root, "permuted-mnist", "memory/frorp-10", [0.7, 0.8], "frorp", memory=10)
    lines = BLOCKS["permuted-mnist-memory"](root / "results").splitlines()
    assert lines[0] == "| points a task | `fromp` | `frorp` | `fromp-l2` |"
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["10", "20", "40", "100", "200"]
    assert "| 75.00 ± 5.00 (2 seeds) |" in lines[2]
    assert "not run: 5 seeds take about" in lines[3]


def test_tables_of_one_head_mark_exactly_the_methods_that_are_told_the_task():
    """And the benchmarks named as such are those whose tasks have no head of their own."""
    for name in ("toy", "permuted-digits", "split-digits"):
        heads = BENCHMARKS[name].stream(0).task(0).head
        assert (heads is None) == (name in fill_tables.ONE_HEAD)
        marked = {method for method in METHODS if "told the task" in fill_tables._title(name, method)}
        assert marked == ({method for method, entry in METHODS.items() if entry.told} if heads is None else set())
