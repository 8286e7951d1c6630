"""The report: one file that stands alone, says what it has, and works in a browser."""

import base64
import json
import re
import shutil
import tomllib
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import markupsafe
import pytest
import torch
from oracles.browser import look, needs_browser

import fromp
from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError
from fromp.lab import cli, data, report
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.report import gallery, plane
from fromp.lab.report.figures import style
from fromp.lab.report.figures.plane import toy_strip
from fromp.lab.report.figures.style import save
from fromp.lab.results import published
from fromp.lab.results.store import find
from fromp.memory import Memory

VOID = {"meta", "link", "img", "input", "br", "hr", "path", "use", "rect"}
HOSTILE = """<script>alert("1")</script>&'$x_1$"""


class Page(HTMLParser):
    """Every tag with its attributes, the text outside scripts and styles, and an error if tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self._open = "", []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self._open):
            self.text += data

    def count(self, tag, **attributes):
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return sum(1 for of, has in self.tags if of == tag and wanted.items() <= has.items())


def run(out: Path, *options: str) -> Path:
    assert cli.main(["run", "toy-less-data", "--epochs", "1", "--quiet", "--out", str(out), *options]) == 0
    return out


def page(out: Path) -> Page:
    path = report.write(out)
    assert path == out / "report.html"
    return Page(path.read_text())


def change(out: Path, **values: object) -> None:
    path = out / "results.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """Two seeds of two tasks, for tests that copy them."""
    return run(tmp_path_factory.mktemp("made") / "toy", "--tasks", "2", "--seeds", "2")


@pytest.fixture
def out(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "toy"))


def test_it_shows_everything_and_nests(out):
    found = page(out)
    titles = (
        "Average accuracy",
        "Backward transfer",
        "Decision boundary",
        "Accuracy matrix",
        "Forgetting",
        "Cost of a step",
    )
    for title in titles:
        assert title in found.text
    assert "bands are one standard error" in found.text
    assert "paper: 99.9 ± 0.0 %" in found.text
    assert "epochs = 1" in found.text  # is not the benchmark's own, and so not the paper's
    assert found.count("img", class_="chart") == 3
    assert found.count("img", alt="decision boundary after task 2") == 1
    assert found.count("input", type="range", max="2") == 1
    assert found.count("a", href="./results.json") == 1


def test_it_says_what_made_it_and_what_the_numbers_mean(out):
    found = page(out)
    assert f"Made by fromp {fromp.__version__}, {date.today().isoformat()}" in found.text
    assert "fromp run toy-less-data --method fromp" in found.text
    assert "--set epochs=1" in found.text
    assert "below zero, tasks were forgotten" in found.text
    assert "Accuracy is that on the training data" in found.text


def test_it_refers_to_nothing_outside(out):
    found, text = page(out), (out / "report.html").read_text()
    assert not re.search(r"https?:|@import|xmlns|srcset", text)
    assert not re.search(r"url\((?!#)", text)
    for tag, attributes in found.tags:
        assert tag not in {"iframe", "object", "embed", "base"}
        assert (attributes.get("src") or "data:").startswith("data:")
        assert (attributes.get("href") or "#").startswith(("#", "data:", "./"))
    identifiers = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))


@pytest.mark.parametrize("key", ["method", "benchmark"])
def test_a_hostile_name_is_text(out, key):
    change(out, **{key: HOSTILE, "settings": {HOSTILE: HOSTILE}, "environment": {"command": HOSTILE}})
    found = page(out)
    assert found.count("script") == 1
    assert HOSTILE in found.text
    assert markupsafe.escape(HOSTILE) in (out / "report.html").read_text()


def test_a_hostile_folder_in_a_comparison_is_text(out, tmp_path):
    both = tmp_path / "both"
    for name in ("_plain", HOSTILE.replace("/", "")):
        shutil.copytree(out, both / name)
    found = page(both)
    assert found.count("script") == 1
    assert HOSTILE.replace("/", "") in found.text


def test_without_snapshots_it_says_so(out):
    shutil.rmtree(out / "seeds")
    found = page(out)
    assert ": There are no pictures, because the snapshots taken after each task are not beside" in found.text
    assert found.count("input") == 0
    assert found.count("img", class_="chart") == 3


def test_snapshots_of_another_network_are_told(out):
    change(out, settings={**json.loads((out / "results.json").read_text())["settings"], "hidden": [3]})
    assert "do not fit its settings" in page(out).text


def test_one_seed_has_no_bands(out):
    runs = json.loads((out / "results.json").read_text())["runs"][:1]
    change(out, runs=runs)
    found = page(out)
    assert "One seed." in found.text
    assert "bands" not in found.text
    assert "±" not in found.text.replace("paper: 99.9 ± 0.0 %", "")


def test_a_single_task_has_no_backward_transfer(tmp_path):
    found = page(run(tmp_path / "single", "--tasks", "1"))
    assert "Average accuracy" in found.text
    assert "Backward transfer" not in found.text
    assert "Accuracy over time" not in found.text


def test_a_comparison_is_one_page(out, tmp_path):
    both = tmp_path / "both"
    shutil.copytree(out, both / "fromp")
    run(both / "finetune", "--tasks", "2", "--method", "finetune")
    assert "remembered, class 0" not in page(both / "finetune").text  # there is none in its picture
    found = page(both)
    assert "2 runs on toy-less-data" in found.text
    assert found.count("img", class_="stage") == 2
    assert found.count("a", href="./finetune/results.json") == 1
    assert "Accuracy: finetune" in found.text
    assert "remembered, class 0" in found.text
    assert found.text.count("Cost of a step") == 1


def test_unfinished_seeds_are_left_out_and_told(out):
    runs = json.loads((out / "results.json").read_text())["runs"]
    runs[1]["accuracy"] = runs[1]["accuracy"][:1]
    change(out, runs=runs)
    found = page(out)
    assert "1 of 2 seeds have not finished" in found.text
    assert "1 of 2" in found.text
    assert "One seed." in found.text


@pytest.mark.filterwarnings("error")
def test_where_only_the_last_task_was_trained_there_is_a_matrix_and_no_history(out, tmp_path):
    runs = json.loads((out / "results.json").read_text())["runs"]
    change(out, runs=[{**one, "accuracy": [None, one["accuracy"][-1]]} for one in runs])
    found = page(out)
    assert "Accuracy matrix" in found.text
    assert found.text.count("task 1, not trained") == 1
    assert "task 2, not trained" not in found.text
    for missing in ("Accuracy over time", "Backward transfer"):
        assert missing not in found.text
    both = tmp_path / "both"
    for name in ("one", "other"):
        shutil.copytree(out, both / name)
    assert "As tasks come" in page(both).text


def test_nothing_learned_yet(out):
    change(out, runs=[{"seed": 0, "accuracy": [], "seconds": 0, "tasks": 2}], summary={})
    assert "No task has been learned yet." in page(out).text


def test_only_what_the_contract_names_is_needed(out):
    runs = json.loads((out / "results.json").read_text())["runs"]
    kept = ("seed", "accuracy", "average_accuracy", "backward_transfer", "forward_transfer", "seconds")
    change(out, runs=[{name: one[name] for name in kept} for one in runs])
    assert "Accuracy matrix" in page(out).text


def test_where_steps_were_not_counted_it_shows_the_time_of_each_task(out):
    runs = json.loads((out / "results.json").read_text())["runs"]
    change(out, runs=[{name: value for name, value in one.items() if name != "task_steps"} for one in runs])
    found = page(out)
    assert "Cost of a step" not in found.text
    assert found.count("img", alt="Time of fromp") == 1


def test_an_image_benchmark_shows_what_is_remembered(out):
    write_image_snapshot(out)
    change(out, benchmark="some-images")
    found = page(out)
    assert "What is remembered" in found.text
    assert found.count("img", alt="class 7") == 2
    assert "0.25" in found.text
    assert "drawn at random" not in found.text
    assert [len(task) for task in gallery.remembered(find(out)[0])] == [4]


def test_points_that_were_drawn_are_shown_without_a_score(out):
    write_image_snapshot(out)
    change(out, benchmark="some-images", method="replay")
    found = page(out)
    assert "drawn at random" in found.text
    assert "the score of each image" not in found.text
    assert found.count("img", alt="class 7") == 2
    assert {one.score for task in gallery.remembered(find(out)[0]) for one in task} == {None}


def test_permuted_images_are_shown_as_they_were(tmp_path):
    out = tmp_path / "permuted"
    options = ["--tasks", "2", "--epochs", "1", "--memory", "10", "--quiet", "--out", str(out)]
    assert cli.main(["run", "permuted-digits", *options]) == 0
    digits = data.load("digits").floats().train_x.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).double()
    for task in gallery.remembered(find(out)[0]):
        assert len(task) == 10
        for one in task:
            assert bool((digits == torch.from_numpy(one.image)).flatten(1).all(1).any())
    assert "put back in their places" in page(out).text


def test_a_report_needs_no_dataset(tmp_path, monkeypatch):
    out = tmp_path / "split"
    options = ["--tasks", "2", "--epochs", "1", "--memory", "10", "--quiet", "--out", str(out)]
    assert cli.main(["run", "split-digits", *options]) == 0
    monkeypatch.setattr(data, "load", lambda *name: pytest.fail("a dataset was loaded"))
    assert page(out).text.count("Task 2") == 1


def test_figures_follow_the_readers_colours(out):
    report.write(out)
    addresses = re.findall(r'data:image/svg\+xml;base64,([^"]+)', (out / "report.html").read_text())
    assert len(addresses) == 3
    for figure in map(base64.b64decode, addresses):
        assert b"prefers-color-scheme: dark" in figure
        assert b"currentColor" in figure
        assert style.INK.encode() not in figure


def test_forward_transfer_stands_in_a_comparison(out, tmp_path):
    both = tmp_path / "both"
    for name in ("one", "other"):
        shutil.copytree(out, both / name)
    assert "forward transfer" not in page(both).text
    runs = json.loads((out / "results.json").read_text())["runs"]
    change(both / "one", runs=[{**one, "forward_transfer": 0.0123} for one in runs])
    assert "forward transfer" in page(both).text
    assert "1.23" in page(both).text


def test_networks_trained_alone_give_the_others_their_forward_transfer(out, tmp_path):
    both = tmp_path / "both"
    shutil.copytree(out, both / "fromp")
    shutil.copytree(out, both / "separate")
    runs = json.loads((out / "results.json").read_text())["runs"]
    for run in runs:
        run["accuracy"][-1] = [value - 0.125 for value in run["accuracy"][-1]]
    change(both / "separate", method="separate", runs=runs)
    assert "12.50 ± 0.00" in page(both).text
    found = find(both / "fromp")[0].with_forward_transfer(find(both / "separate")[0])
    assert found.summary("forward_transfer").mean == pytest.approx(0.125)


def write_image_snapshot(out: Path) -> None:
    shutil.rmtree(out / "seeds")
    scores = torch.tensor([0.5, 0.25, 0.5, 0.4])
    memory = Memory(torch.rand(4, 64), torch.tensor([0, 0, 1, 1]), scores, (6, 7), torch.arange(4)).state_dict()
    for seed in (0, 1):
        state = {"accuracy": [1.0], "weights": {}, "memory": memory, "pictures": torch.rand(4, 1, 8, 8)}
        storage.write(out / "seeds" / str(seed) / "tasks" / "1", "task", state)


@pytest.mark.parametrize("text", [None, "{", "[]", '{"runs": []}'])
def test_a_folder_without_sound_results_is_an_error(tmp_path, text):
    if text is not None:
        (tmp_path / "results.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"results\.json"):
        report.write(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_figures_are_saved_in_three_formats(out, tmp_path):
    experiment = find(out)[0]
    saved = save(toy_strip(plane.boundaries(experiment, 0)), tmp_path / "new" / "strip")
    assert [path.name for path in saved] == ["strip.pdf", "strip.svg", "strip.png"]
    assert all(path.stat().st_size for path in saved)
    assert "after task 1" in saved[1].read_text()  # text stays text


def test_drawing_leaves_matplotlib_as_it_was(out):
    import matplotlib

    before = dict(matplotlib.rcParams)
    report.write(out)
    assert dict(matplotlib.rcParams) == before


def test_the_papers_numbers_print_as_they_are_there():
    assert str(published.AVERAGE_ACCURACY["split-mnist", "fromp"]) == "99.0 ± 0.1"
    assert str(published.AVERAGE_ACCURACY["permuted-mnist", "dlp"]) == "82"
    assert str(published.AVERAGE_ACCURACY["toy", "joint"]) == "99.70 ± 0.03"
    assert str(published.FORWARD_TRANSFER["split-cifar", "ewc"]) == "0.17 ± 0.9"
    toys = {benchmark for benchmark, _ in published.AVERAGE_ACCURACY if benchmark.startswith("toy")}
    assert toys == {benchmark for benchmark in BENCHMARKS if benchmark.startswith("toy")}


SLIDER = """
const slider = inside.querySelector("input[type=range]"), stage = inside.querySelector(".stage");
const pictures = [slider.max, 1].map(task => {
  slider.value = task;
  slider.dispatchEvent(new view.Event("input"));
  return stage.src;
});
found.pictures = new Set(pictures).size;
found.stage = !stage.hidden && stage.getBoundingClientRect().width > 100;
"""

SORTING = """
const table = inside.querySelector("table.sortable"), button = table.querySelector("th button");
const order = () => [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
button.click();
found.up = order();
button.click();
found.down = order();
"""


@needs_browser
@pytest.mark.parametrize("width", [380, 1200])
def test_in_a_browser_the_slider_moves_tables_sort_and_nothing_overflows(out, tmp_path, width):
    found = look(report.write(out), tmp_path, width, SLIDER + SORTING)
    assert found == {"pictures": 2, "stage": True, "up": ["0", "1"], "down": ["1", "0"], "beyond": [], "overflow": 0}


LAST_COLUMN = """
const table = inside.querySelector("table.sortable"), buttons = [...table.querySelectorAll("th button")];
found.orders = [buttons.at(-1), buttons.find(button => button.textContent === "backward transfer")].map(button => {
  button.click();
  return [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
});
"""


@needs_browser
def test_in_a_browser_times_sort_by_length_and_signs_count(out, tmp_path):
    both = tmp_path / "both"
    runs = json.loads((out / "results.json").read_text())["runs"]
    for name, seconds, lost in (("b", 50, 0.0625), ("c", 7200, 0.125), ("a", 90, -0.0625)):
        shutil.copytree(out, both / name)
        matrix = [[0.5], [0.5 - lost, 0.75]]
        change(both / name, runs=[{**one, "seconds": seconds, "accuracy": matrix} for one in runs])
    found = look(report.write(both), tmp_path, 1200, LAST_COLUMN)
    assert found["orders"] == [["b", "a", "c"], ["c", "b", "a"]]


@needs_browser
@pytest.mark.parametrize("width", [380, 1200])
def test_in_a_browser_a_comparison_and_a_gallery_do_not_overflow(out, tmp_path, width):
    both = tmp_path / "both"
    for name in ("a-method-with-a-long-name", "another"):
        shutil.copytree(out, both / name)
    write_image_snapshot(both / "another")
    change(both / "another", benchmark="some-images")
    found = look(report.write(both), tmp_path, width, SORTING)
    assert found["beyond"] == []
    assert found["overflow"] == 0
    assert sorted(found["up"]) == ["a-method-with-a-long-name", "another"]


def test_every_template_is_in_the_wheel():
    """Whatever lies in the package and is not Python is named in pyproject.toml."""
    root = Path(__file__).parents[3]
    wanted = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["fromp"]
    package = root / "src" / "fromp"
    packed = {path for pattern in wanted for path in package.glob(pattern)}
    others = {path for path in package.rglob("*.*") if path.suffix not in (".py", ".pyc")}
    assert len(list(package.rglob("*.html"))) == 5
    assert others <= packed
