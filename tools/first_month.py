"""Walks from the built wheel to a first month of one's own data in an empty environment, in README.md's own words.

    python tools/first_month.py

builds the wheel, installs it as README.md says, runs the commands of its section "Your own data, month by month" on
months of made-up customers, and keeps the seconds in results/first-month/took.json.
"""

import csv
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

from fromp.lab.results.environment import environment

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "results" / "first-month" / "took.json"
ROWS = 1000  # per month
BUSY = 4  # processes that wait for a core, from which on the times are not those of the commands alone
PLANS = ("basic", "family", "pro")


def commands() -> list[list[str]]:
    """The lines of the section's block, each as words."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Your own data, month by month")[2]
    (block, *_) = re.findall(r"^```sh\n(.*?)^```$", section, re.M | re.S)
    return [shlex.split(line, comments=True) for line in block.splitlines()]


def write_months(folder: Path) -> None:
    """january.csv and february.csv with the label `churn`, and march.csv without it; the rule moves with the months."""
    draw = random.Random(0)
    for number, name in enumerate(("january", "february", "march")):
        rows = []
        for _ in range(ROWS):
            age, income, plan = draw.uniform(18, 80), draw.uniform(1e6, 9e6), draw.randrange(len(PLANS))
            leaves = (age - 50) / 18 + (income - 5e6) / 2.5e6 + plan - 1 + 0.3 * number > 0
            rows.append([f"{age:.0f}", f"{income:.0f}", PLANS[plan], "yes" if leaves else "no"])
        columns = ["age", "income", "plan", "churn"]
        with (folder / f"{name}.csv").open("w", newline="") as file:
            keep = slice(None, 3 if name == "march" else 4)
            csv.writer(file).writerows(row[keep] for row in [columns, *rows])


def walk(folder: Path) -> dict[str, Any]:
    """The seconds of the installation and of each command; an error if one fails."""
    run = lambda words, **options: subprocess.run(words, check=True, cwd=folder, **options)  # noqa: E731
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "dist", ROOT])
    (wheel,) = (folder / "dist").glob("fromp-*.whl")
    venv.create(folder / "environment", with_pip=True)
    scripts = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
    own = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    own.pop("PYTHONPATH", None)
    write_months(folder)
    seconds = {}
    for words in commands():
        start = time.monotonic()
        line = shlex.join(words)
        if words[:2] == ["pip", "install"]:  # the wheel in place of the clone, and the CPU build of torch
            words = [str(scripts / "python"), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"),
                     words[2].replace(".", str(wheel), 1)]  # fmt: skip
        run([scripts / "fromp", *words[1:]] if words[0] == "fromp" else words, env=own)
        seconds[line] = time.monotonic() - start
    return seconds


def text(found: dict[str, Any]) -> str:
    """What was measured, for README.md."""
    seconds = [*found["seconds"].items()]
    install, first = seconds[0][1], next(took for line, took in seconds if line.startswith("fromp learn"))
    machine = "{cores} cores of {processor}".format(**found["environment"])
    busy = f", busy with other work at a load of {found['load']:.0f}" if found["load"] > BUSY else ""
    return (
        f"From an empty environment, on {machine}{busy}: {install:.0f} seconds to install, {first:.0f} for a first "
        f"month of {found['rows']:,} rows."
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        seconds = walk(Path(folder))
    found = {"rows": ROWS, "load": os.getloadavg()[0], "seconds": seconds, "environment": environment()}
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    KEPT.write_text(json.dumps(found, indent=1) + "\n")
    print(text(found))


if __name__ == "__main__":
    main()
