"""The built wheel, installed into an empty environment, runs the documents: what is missing from it shows here."""

import json
import os
import re
import shlex
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import first_month
import pytest
from fill_tables import documents

ROOT = Path(__file__).parents[2]
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^fromp .+$", re.M)
PROGRAMS = [
    *(path for path in documents(ROOT) if PYTHON_BLOCK.search(path.read_text()) and path.name != "integrations.md"),
    *sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")),
]  # integrations.md needs the frameworks: tests/integrations runs it

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", out, ROOT], check=True)
    return next(out.glob("fromp-*.whl"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """The interpreter of an environment that holds the wheel, its extras `lab` and `learn`, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    command = [python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", f"{wheel}[lab,learn]"]
    subprocess.run(command, check=True, cwd=folder, env=own_environment())
    return python


def own_environment() -> dict[str, str]:
    """Without a PYTHONPATH, on which the clone's package would hide the wheel's."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"MPLBACKEND": "agg"}


def run(python: Path, *arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = own_environment()
    return subprocess.run(
        [python, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_it_holds_every_file_of_the_package_and_no_other(wheel):
    package = ROOT / "src" / "fromp"
    kept = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == kept


def program(path: Path) -> str:
    """The Python blocks of a document, or the code cells of a notebook, as one program."""
    if path.suffix == ".md":
        return "\n".join(PYTHON_BLOCK.findall(path.read_text()))
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    return "\n".join("".join(cell["source"]) for cell in cells)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_and_notebooks_run(path, python, tmp_path):
    (tmp_path / "program.py").write_text(program(path))
    done = run(python, "program.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_command_line_is_one(python, tmp_path):
    lines = [line for path in documents(ROOT) for line in COMMAND.findall(path.read_text())]
    (tmp_path / "lines.json").write_text(json.dumps(lines))
    text = "import json, shlex; from fromp.lab import cli\n"
    text += "for line in json.load(open('lines.json')): cli.parse(shlex.split(line, comments=True)[1:])"
    done = run(python, "-c", text, folder=tmp_path)
    assert len(lines) > 30
    assert done.returncode == 0, done.stderr


# Commands that learn for more than a minute whatever the options, or need data to be fetched, are parsed alone.
LONG = re.compile(r"mnist|cifar|^fromp (detect|bench|reproduce(?! --list| .*--as-is))")
SHORTER = ["--tasks", "2", "--epochs", "1"]
RUN = """
import json, sys
from fromp.lab.cli import main
for line in json.load(open("lines.json")):
    if main(line):
        sys.exit(f"failed: {line}")
"""
NETWORK = """
from torch import nn

def build(shape, outputs):
    return nn.Sequential(nn.Linear(*shape, 16), nn.ReLU(), nn.Linear(16, outputs))
"""


def test_the_command_lines_run(python, tmp_path):
    """Those of README.md and docs/, block by block; runs of benchmarks with fewer tasks and epochs."""
    number = 0
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for block in re.findall(r"^```sh\n(.*?)^```$", path.read_text(), re.M | re.S):
            lines = [shlex.split(line, comments=True) for line in COMMAND.findall(block)]
            words = [line[1:] for line in lines if not LONG.search(shlex.join(line))]
            if not words:
                continue
            folder = tmp_path / str(number)
            folder.mkdir()
            first_month.write_months(folder)
            (folder / "my_net.py").write_text(NETWORK)
            if "mine.py" in block:
                (folder / "mine.py").write_text(PYTHON_BLOCK.findall(path.read_text())[0])
            words = [[*one, *SHORTER] if one[0] in ("run", "compare", "tune") else one for one in words]
            (folder / "lines.json").write_text(json.dumps(words))
            done = run(python, "-c", RUN, folder=folder)
            assert done.returncode == 0, f"{path.name}: {done.stderr[-2000:]}"
            number += len(words)
    assert number >= 20


def test_a_first_month_in_the_readmes_words(tmp_path):
    seconds = first_month.walk(tmp_path)
    assert {line.split()[1] for line in seconds if line.startswith("fromp")} >= {"learn", "evaluate", "predict"}
    assert (tmp_path / "churn" / "report.html").stat().st_size > 10_000
    assert len((tmp_path / "march-predicted.csv").read_text().splitlines()) == 1 + first_month.ROWS


def test_the_commands_run_and_report(python, tmp_path):
    command = python.with_name("fromp")
    listed = run(command, "list", folder=tmp_path)
    assert listed.returncode == 0, listed.stderr
    learned = run(command, "run", "toy", "--tasks", "2", "--epochs", "2", folder=tmp_path)
    assert learned.returncode == 0, learned.stderr
    assert (tmp_path / "runs" / "toy-fromp" / "report.html").stat().st_size > 10_000


def test_the_library_alone_says_how_to_get_the_lab(wheel, tmp_path):
    """`fromp` without the extra is an error that names it, not a traceback."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    command = [python, "-m", "pip", "install", "-q", "--no-deps", wheel]
    subprocess.run(command, check=True, env=own_environment())
    done = run(python, "-m", "fromp", "list", folder=tmp_path)
    assert done.returncode == 2
    assert "[lab]" in done.stderr
    assert "Traceback" not in done.stderr
