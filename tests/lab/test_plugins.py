"""Methods and benchmarks of one's own, outside the package."""

import json
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from fromp.foundation.errors import FrompError
from fromp.lab import plugins, register
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.cli import main
from fromp.lab.methods import METHODS

DOCUMENT = Path(__file__).parents[2] / "docs" / "lab" / "adding.md"
EXAMPLE = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.M | re.S)[0]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The example of the document as a file; what it registers is forgotten after the test."""
    monkeypatch.setattr(plugins, "_files", [])
    monkeypatch.setattr(plugins, "_entry_points", set())
    for known in (METHODS, BENCHMARKS):
        before = dict(known)
        for name in ("anchored", "my-stream"):
            monkeypatch.setitem(known, name, None)  # so that it is taken out again
        known.clear()
        known.update(before)
    (tmp_path / "mine.py").write_text(EXAMPLE)
    return tmp_path / "mine.py"


def test_the_example_runs_with_a_plugin(mine, tmp_path, capsys):
    """In this process and in two others, which load the file too."""
    command = ["run", "my-stream", "--method", "anchored", "--plugin", str(mine), "--tasks", "2", "--epochs", "2"]
    command += ["--set", "strength=3", "--quiet", "--out"]
    assert main([*command, str(tmp_path / "one")]) == 0
    found = json.loads((tmp_path / "one" / "results.json").read_text())
    assert (found["benchmark"], found["method"], found["settings"]["strength"]) == ("my-stream", "anchored", 3.0)
    assert main([*command, str(tmp_path / "several"), "--seeds", "2", "--jobs", "2"]) == 0
    several = json.loads((tmp_path / "several" / "results.json").read_text())
    assert several["runs"][0]["accuracy"] == found["runs"][0]["accuracy"]
    assert "report: " in capsys.readouterr().out


def test_a_fresh_process_knows_the_command(mine, tmp_path):
    command = ["compare", "my-stream", "--methods", "anchored,finetune", "--plugin", str(mine), "--epochs", "1"]
    ran = [sys.executable, "-m", "fromp", *command, "--quiet", "--out", str(tmp_path / "out")]
    assert subprocess.run(ran, check=False).returncode == 0
    assert (tmp_path / "out" / "anchored" / "results.json").exists()


def test_a_plugin_is_loaded_before_tables_and_figures(mine, tmp_path, capsys):
    assert main(["reproduce", "--list", "--plugin", str(mine), "--out", str(tmp_path)]) == 0
    assert plugins.loaded() == (mine,)
    assert "table-toy" in capsys.readouterr().out


def test_a_plugin_is_loaded_once(mine):
    plugins.load([mine, mine])
    plugins.load([mine])
    assert plugins.loaded() == (mine,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"plug-in .*mine\.py does not exist; give the path of a Python file"),
        ("1 / 0", r"plug-in .*mine\.py fails with ZeroDivisionError: division by zero; correct it, or leave it out"),
        ("import of_nobody", r"fails with ModuleNotFoundError: No module named 'of_nobody'; correct it"),
        ("def", "fails with SyntaxError"),
        ("raise SystemExit(3)", "fails with SystemExit"),
        ("x = 1", r"registers nothing; call fromp\.lab\.register in it with a MethodCard or a Benchmark"),
        (EXAMPLE + EXAMPLE, "there is a method 'anchored' already; give this one another name; correct it"),
        (EXAMPLE.replace('"my-stream"', '"toy"'), "there is a benchmark 'toy' already"),
        ("from fromp.lab import register\nregister(3)", "3 cannot be registered; give a MethodCard or a Benchmark"),
    ],
)
def test_a_plugin_that_fails_names_file_reason_and_way_out(mine, capsys, text, message):
    known = set(METHODS), set(BENCHMARKS)
    mine.unlink() if text is None else mine.write_text(text)
    with pytest.raises(FrompError, match=message):
        plugins.load([mine])
    assert (set(METHODS), set(BENCHMARKS)) == known
    assert plugins.loaded() == ()
    assert main(["run", "toy", "--plugin", str(mine)]) == 2
    assert "mine.py" in capsys.readouterr().err


def test_an_installed_package_registers_by_its_entry_point(mine, monkeypatch):
    monkeypatch.syspath_prepend(mine.parent)
    point = EntryPoint("anchored", "mine", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == plugins.GROUP else [])
    plugins.load()
    plugins.load()
    assert "anchored" in METHODS
    monkeypatch.delitem(sys.modules, "mine")
    broken = EntryPoint("other", "of_nobody", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [broken])
    with pytest.raises(FrompError, match=r"plug-in other \(of_nobody\) fails with ModuleNotFoundError"):
        plugins.load()


def test_only_cards_and_benchmarks_are_registered():
    with pytest.raises(FrompError, match="cannot be registered"):
        register("anchored")
