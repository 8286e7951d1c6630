"""The command line: what it accepts, what it says of a wrong line, and what it prints."""

import json
import os
import subprocess
import sys

import pytest

from fromp import __version__
from fromp.foundation.errors import FrompError
from fromp.lab import cli
from fromp.lab.cli import main
from fromp.lab.engine.run import Interrupted, Run
from fromp.learn.console import PlainConsole, printable

QUICK = ["--tasks", "1", "--epochs", "1"]
COMMANDS = ["run", "compare", "tune", "reproduce", "report", "bench", "detect", "list", "data"]


def python(*words, **environment):
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "toi"], "unknown benchmark 'toi'; did you mean 'toy'?"),
        (["run", "toy", "--method", "frmop"], "unknown method 'frmop'; did you mean"),
        (["run", "toy", "--set", "learning=1"], "fromp has no setting learning; it has tau, memory, "),
        (["run", "toy", "--set", "tua=1"], "Did you mean tau?"),
        (["run", "toy", "--method", "ewc", "--set", "tau=1"], "ewc has no setting tau; it has strength."),
        (["run", "toy", "--method", "finetune", "--memory", "3"], "finetune has no setting memory; it has none"),
        (["compare", "toy", "--methods", "ewc,si", "--set", "tau=1"], "ewc has no setting tau; it has strength."),
        (["run", "toy", "--set", "lr"], "write KEY=VALUE"),
        (["run", "toy", "--set", "lr=fast"], "as a number (got fast)"),
        (["run", "toy", "--set", "lr=-1"], "lr must be greater than 0 (got -1)"),
        (["run", "toy", "--epochs", "0"], "epochs must be at least 1 (got 0)"),
        (["run", "toy", "--set", "hidden=20,0"], "hidden must be at least 1 (got 0)"),
        (["run", "toy", "--set", "clip-norm=0"], "clip_norm must be greater than 0 (got 0)"),
        (["run", "toy", "--task-free", "--set", "reservoir=10"], "reservoir must be at least memory=20 (got 10)"),
        (["run", "toy", "--task-free", "--set", "threshold=1"], "fromp has no setting threshold"),
        (["run", "toy", "--set", "boundaries=welsh"], "unknown detector 'welsh'; did you mean 'welch'?"),
        (["run", "toy", "--set", "validation=0.0001"], "validation=0.0001 holds out 0 of the 4000 examples"),
        (
            ["run", "toy", "--set", "schedule=linear"],
            "schedule must be 'constant', 'linear-decay' or 'late-decay' (got linear)",
        ),
        (["run", "toy", "--tasks", "9"], "tasks=9 is more than the benchmark has; use at most 5"),
        (["run", "toy", "--seeds", "0"], 'Invalid value "0" for --seeds. Must be > 0.'),
        (["run", "toy", "--seed", "-1"], 'Invalid value "-1" for --seed. Must be >= 0.'),
        (["run", "toy", "--seed", str(2**32)], "for --seed. Must be < 4294967296."),
        (["run", "toy", "--seeds", "2", "--seed", "0"], "--seeds 2 and --seed 0 contradict each other"),
        (["run", "toy", "--jobs", "0"], 'Invalid value "0" for --jobs. Must be > 0.'),
        (["run", "toy", "--checkpoint-seconds", "nan"], 'Invalid value "nan" for --checkpoint-seconds. Must be >= 0'),
        (["run", "toy", "--epochs", "two"], 'unable to convert "two" into int'),
        (["run", "toy", "--task-free", "--set", "boundaries=given"], "boundaries=given contradict each other"),
        (["run", "toy", "--mehtod", "ewc"], "Unknown option: --mehtod. Did you mean --method?"),
        (["run", "toy", "extra"], "['extra']. `fromp run --help` lists the options."),
        (["run"], "BENCHMARK requires an argument"),
        (["rnu", "toy"], 'Unknown command "rnu". Did you mean "run"?'),
        (["methods"], 'Did you mean "list"?'),
        (["tune", "toy", "--grid", "tau"], "--grid tau has no values; write KEY=V1,V2, as in --grid tau=1,10."),
        (["tune", "toy"], "--grid requires an argument. `fromp tune --help` lists the options."),
        (["compare", "toy"], "--methods requires an argument"),
        (["compare", "toy", "--methods", ","], "--methods , names no method"),
        (["report", "nowhere"], "nowhere"),
        (["data", "fetch"], "NAME requires an argument"),
        (["data", "fetsh", "mnist"], "fetsh"),
        (["data", "fetch", "imagenet"], "imagenet"),
        (["detect", "--seeds", "0"], 'Invalid value "0" for --seeds. Must be > 0.'),
    ],
)
def test_wrong_arguments(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.startswith("fromp: ")


def test_alone_it_prints_its_help(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(f"│ {command} " in said for command in COMMANDS)
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_can_be_parsed(command, capsys):
    assert main([command, "--help"]) == 0
    said = capsys.readouterr().out
    examples = [line.split() for line in said.splitlines() if line.startswith(f" fromp {command}")]
    assert examples
    for words in examples:
        cli.parse(words[1:])


def test_a_line_is_parsed_without_being_run():
    command, arguments = cli.parse(["run", "toy", "--seeds", "3", "--set", "lr=1", "--set", "tau=2"])
    assert command is cli.run
    assert arguments.arguments["benchmark"] == "toy"
    assert arguments.arguments["learning"].chosen_seeds() == [0, 1, 2]
    assert arguments.arguments["learning"].set == ["lr=1", "tau=2"]
    _, arguments = cli.parse(["run", "toy", "--seeds", "3", "--seeds", "2", "--quiet", "--quiet"])
    assert arguments.arguments["learning"].chosen_seeds() == [0, 1]  # the last one wins
    with pytest.raises(FrompError, match="Unknown option"):
        cli.parse(["run", "toy", "--nothing"])


@pytest.mark.parametrize("words", [["--version"], ["--help"], [], ["run", "--help"], ["rnu"], ["run", "--mehtod", "a"]])
def test_help_version_and_wrong_lines_do_not_load_torch(words):
    code = "import sys; from fromp.__main__ import main; main(); print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = python("-c", code, *words)
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.returncode == 0


def test_it_is_a_module_too():
    done = python("-m", "fromp", "--version")
    assert (done.returncode, done.stdout) == (0, f"fromp {__version__}\n")
    assert python("-m", "fromp", "rnu").returncode == 2


@pytest.mark.parametrize(("missing", "words"), [("cyclopts", ["--version"]), ("joblib", ["run", "toy"])])
def test_without_the_extra_it_says_how_to_install_it(missing, words, tmp_path):
    """As in an environment that has the library alone: a finder in front of all others refuses the module."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nclass Refuse:\n    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {missing!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = python("-m", "fromp", *words, PYTHONPATH=path)
    assert done.returncode == 2
    way_out = "pip install 'fromp[lab]', or in a clone pip install '.[lab]'"
    assert done.stderr == f"fromp: this command needs {missing}, which is not installed; {way_out}.\n"


def test_the_shell_completes_commands_options_and_names(capsys):
    script = cli.app.generate_completion(shell="bash")
    assert "checkpoint-seconds" in script
    for words, expected in {
        ("run", "spl"): "split-mnist\t",
        ("run", "toy", "--method", "e"): "ewc",
        ("reproduce", "tab"): "table-toy\t",
        ("data", "fetch", ""): "cifar100",
    }.items():
        assert main(["__complete", *words]) == 0
        assert any(line.startswith(expected) for line in capsys.readouterr().out.splitlines()), words


@pytest.mark.parametrize("name", ["a[/y]", "[bold]a", "a:smile:", "a\x1b[31mb\x07", "a\x9b31mb"])
def test_a_folder_may_have_any_name(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["run", "toy", *QUICK, "--out", name]) == 0
        said = capsys.readouterr().out
        assert f"in {printable(name)}" in said
        assert f"report: {printable(name)}{os.sep}report.html" in said
        assert printable(said) == said
    assert (tmp_path / name / "report.html").exists()
    assert main(["run", "toy", "--tasks", "2", "--out", name]) == 2
    said = capsys.readouterr().err
    assert printable(name) in said
    assert printable(said) == said


def test_tables_take_names_as_they_are(capsys):
    from rich.table import Table

    table = Table(title="[b]\x1b[31m")
    table.add_column("[/x]")
    table.add_row(":cat:\x1b]0;title\x07")
    PlainConsole().print(table)
    said = capsys.readouterr().out
    assert "[b][31m" in said
    assert "[/x]" in said
    assert ":cat:]0;title" in said
    assert printable(said) == said


def test_a_run_as_json(tmp_path, capsys):
    arguments = ["run", "toy", *QUICK, "--json", "--out", str(tmp_path)]
    assert main(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {
        **json.loads((tmp_path / "results.json").read_text()),
        "folder": str(tmp_path),
        "report": str(tmp_path / "report.html"),
    }
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out) == said


def test_a_comparison_as_json(tmp_path, capsys):
    methods = ["finetune", "ewc"]
    assert main(["compare", "toy", "--methods", ",".join(methods), *QUICK, "--json", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert err == ""
    assert [result["method"] for result in said["results"]] == methods
    assert said["results"][0]["folder"] == str(tmp_path / "finetune")
    (difference,) = said["differences"]
    assert (difference["method"], difference["less"], difference["n"], difference["p"]) == ("finetune", "ewc", 1, None)
    assert said["report"] == str(tmp_path / "report.html")


def test_the_list_as_a_page_and_as_json(capsys):
    assert main(["list", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {"name": "toy", "title": "five pairs of blobs in the plane"} in said["benchmarks"]
    (ewc,) = [method for method in said["methods"] if method["name"] == "ewc"]
    assert set(ewc) == {"name", "paper", "keeps", "step_cost", "needs_task_at_test"}
    assert main(["list"]) == 0
    page = capsys.readouterr().out
    assert all(entry["name"] in page for kind in said.values() for entry in kind)


@pytest.mark.parametrize("number", [2, 15])
def test_an_interrupted_run_says_so_on_standard_error(number, tmp_path, capsys, monkeypatch):
    def learn(run, checkpoint_seconds):
        raise Interrupted(number)
        yield

    monkeypatch.setattr(Run, "learn", learn)
    assert main(["run", "toy", *QUICK, "--json", "--out", str(tmp_path)]) == 128 + number
    said = capsys.readouterr()
    assert "seed 0: saved; run the same command again to resume" in said.err
    assert said.out == ""


def test_an_interruption_before_there_is_anything_to_save(monkeypatch, capsys):
    def interrupted(*words, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("fromp.lab.bench.main", interrupted)
    assert main(["bench"]) == 130
    assert capsys.readouterr().err == "fromp: interrupted; what was saved is kept. Run the same command again.\n"
