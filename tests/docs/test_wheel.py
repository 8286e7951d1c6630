"""The built wheel, installed into an empty environment, runs the README: what is missing from it shows here."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", out, ROOT], check=True)
    return next(out.glob("fromp-*.whl"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """The interpreter of an environment that holds the wheel, its extra `lab`, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    command = [python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", f"{wheel}[lab]"]
    subprocess.run(command, check=True, cwd=folder)
    return python


def run(python: Path, *arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
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


def test_the_readme_runs(python, tmp_path):
    program = "\n".join(PYTHON_BLOCK.findall((ROOT / "README.md").read_text()))
    done = run(python, "-c", program, folder=tmp_path)
    assert done.returncode == 0, done.stderr


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
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", wheel], check=True)
    done = run(python, "-m", "fromp", "list", folder=tmp_path)
    assert done.returncode == 2
    assert "[lab]" in done.stderr
    assert "Traceback" not in done.stderr
