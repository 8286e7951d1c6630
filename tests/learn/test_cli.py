"""The commands for one's own data: what they print, what they write, and their exit codes."""

import json
import os
import subprocess
import sys

import pytest
from oracles.months import customers, month, write_csv

from fromp.lab.cli import main
from fromp.learn import COMMANDS

# Everything that the laboratory has and the extra `learn` has not.
LAB_ONLY = ("sklearn", "matplotlib", "joblib", "pydantic", "scipy")
WITHOUT_THE_LAB = f"""
import sys
from importlib.machinery import PathFinder

class Installed:
    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] in {LAB_ONLY} else PathFinder.find_spec(name, *rest)

sys.meta_path[sys.meta_path.index(PathFinder)] = Installed()
from fromp.__main__ import main
sys.exit(main())
"""


def test_the_way_through_the_months(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    month(tmp_path, 0), month(tmp_path, 1)
    state = ["--state", "churn"]
    options = ["--epochs", "2", "--hidden", "16", "--memory", "8"]
    assert main(["learn", "month-0.csv", "--label", "churn", *state, *options]) == 0
    said = capsys.readouterr().out
    assert "month-0: 60 rows, 12 of them held out for testing" in said
    assert "number: age, income" in said
    assert "category: plan" in said
    assert "classes of churn: no, yes" in said
    assert main(["learn", "month-1.csv", *state, "--tau", "1", "--memory", "4"]) == 0
    assert "accuracy on held-out rows, %: month-0 " in capsys.readouterr().out
    assert main(["evaluate", *state]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["month", "month-0", "month-1"]
    assert main(["evaluate", "month-1.csv", *state, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["name"], row["note"]) == ("month-1", "held-out part")
    assert main(["inspect", *state, "--json"]) == 0
    assert [row["points"] for row in json.loads(capsys.readouterr().out)["rows"]] == [8, 4]
    assert main(["inspect", *state, "--month", "month-1"]) == 0
    head, *examples = capsys.readouterr().out.splitlines()
    assert head.split() == ["index", "label", "score", "age", "income", "plan"]
    assert len(examples) == 4
    assert main(["forget", *state, "--month", "month-1", "--examples", "0,1"]) == 0
    assert "month-1    60     2" in capsys.readouterr().out
    assert main(["predict", "month-1.csv", *state, "--to", "out.csv"]) == 0
    assert capsys.readouterr().out == "out.csv: 60 predictions\n"
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 61


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["learn"], "FILE requires an argument"),
        (["learn", "january.csv"], "--state requires an argument"),
        (["learn", "january.csv", "--state", "s"], "january.csv is not there"),
        (["learn", "january.csv", "--state", "s", "--hidden", "a"], "--hidden a is not a list of whole numbers"),
        (["learn", "january.csv", "--state", "s", "--kind", "class"], "for --kind"),
        (["evaluate", "--state", "s"], "s holds no state; learn a first month into it"),
        (["inspect", "--state", "s"], "s holds no state"),
        (["forget", "--state", "s"], "--month requires an argument"),
        (["predict", "a.csv", "--state", "s"], "--to requires an argument"),
    ],
)
def test_wrong_words(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"fromp {command} " in capsys.readouterr().out


def test_the_commands_need_the_extra_learn_alone(tmp_path):
    """In a process that cannot import what only the laboratory needs."""
    month(tmp_path, 0)
    options = ["--label", "churn", "--state", "s", "--epochs", "1"]
    command = [sys.executable, "-c", WITHOUT_THE_LAB, "learn", "month-0.csv", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "month-0: 60 rows" in done.stdout


@pytest.mark.parametrize(("command", "extra"), [("learn", "learn"), ("run", "lab")])
def test_what_is_not_installed_is_named_with_its_extra(command, extra):
    script = "import sys; sys.modules['cyclopts'] = None\nfrom fromp.__main__ import main\nsys.exit(main())"
    done = subprocess.run([sys.executable, "-c", script, command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"needs cyclopts, which is not installed; pip install 'fromp[{extra}]'" in done.stderr


def test_help_does_not_wait_for_torch():
    script = (
        "import sys; from fromp.__main__ import main; main(); print('torch' in sys.modules, 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"
    assert "learn" in done.stdout
    assert "compare" in done.stdout


def test_names_with_markup_are_letters(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = write_csv(tmp_path / "[b]\x1b[31m.csv", customers(0))
    assert main(["learn", file.name, "--label", "churn", "--state", "s", "--epochs", "1"]) == 0
    said = capsys.readouterr().out
    assert "[b]" in said
    assert "\x1b[31m" not in said
    assert os.listdir(tmp_path / "s")
