"""`fromp reproduce`: list what there is, learn what is missing, render it."""

import csv
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Listing

from fromp.foundation import storage
from fromp.lab.benchmarks.catalogue import require_known
from fromp.lab.engine.jobs import Execution, learn_all
from fromp.lab.paper.drawings import MissingRuns
from fromp.lab.paper.exhibits import EXHIBITS, Exhibit, call
from fromp.lab.paper.required import ResultsFolder, total
from fromp.lab.paper.tables import benchmark_title
from fromp.lab.report import embed
from fromp.lab.report.figures import style
from fromp.lab.report.page import fill
from fromp.lab.results.environment import environment
from fromp.lab.results.format import Table, about

RENDERED = "paper"  # the folder below that of all results
QUICK = (
    "A quick version: scikit-learn's digits instead of MNIST and CIFAR, a fifth of the epochs at three times the "
    "learning rate, two seeds. It shows how things go, not the paper's numbers."
)


def listing(root: Path, quick: bool) -> Listing:
    """Every table and figure, and how far it is."""
    table = Listing(
        title=f"tables and figures of the paper, with what is kept in {root}", title_justify="left", title_style="bold"
    )
    for head in ("name", "in the paper", "what it shows", "seeds", "state"):
        table.add_column(head, no_wrap=head == "name", justify="right" if head == "seeds" else "left")
    kept = ResultsFolder(root)
    for name, exhibit in EXHIBITS.items():
        seeds, state = progress(exhibit, kept, quick)
        table.add_row(name, exhibit.place, exhibit.title, seeds, state)
    return table


def progress(exhibit: Exhibit, kept: ResultsFolder, quick: bool = False) -> tuple[str, str]:
    """The seeds that are done, and the state of the rest."""
    states = {runs.place: kept.state(runs) for runs in exhibit.runs(quick)}
    done, wanted = sum(one.done for one in states.values()), sum(one.seeds for one in states.values())
    seconds = total(states.values())
    time_left = "time unknown" if seconds is None else about(seconds)
    if all(one.complete for one in states.values()):
        said = "done"
    elif other := [f"{place} ({', '.join(one.different)})" for place, one in states.items() if one.different]:
        said = f"other settings in {'; '.join(other)}"
    elif done == wanted:
        said = f"snapshots missing, {time_left}"
    else:
        said = f"{'partial' if done else 'missing'}, {time_left}"
    return f"{done}/{wanted}", said


def reproduce(names: Sequence[str], root: Path, quick: bool, execution: Execution, console: Console) -> int:
    """Learn what is missing of some tables and figures, then render them; the exit code is that of `learn`."""
    for name in names:
        require_known("table or figure", name, EXHIBITS)
    needed = [runs for name in names for runs in EXHIBITS[name].runs(quick)]
    start, learned = time.monotonic(), 0
    for _ in range(2):  # the middle seeds, which are drawn, are known only when all are done
        if not (jobs := ResultsFolder(root).jobs(needed)):
            break
        kept = ResultsFolder(root)
        seconds = total(kept.state(runs) for runs in {runs.place: runs for runs in needed}.values())
        time_left = "" if seconds is None else f", {about(seconds / execution.jobs)} in all"
        console.print(f"{len(jobs)} runs{time_left}, in {root}", highlight=False)
        if code := learn_all(jobs, execution):
            return code
        learned += len(jobs)
    written = render(names, root, quick, console)
    if learned:
        took = {"seconds": time.monotonic() - start, "jobs": execution.jobs, "runs": learned, "rendered": written}
        text = json.dumps({**took, "quick": quick, "environment": environment()}, indent=1)
        storage.replace(root / RENDERED / "took.json", text.encode())
    return 0


def render(names: Sequence[str], root: Path, quick: bool, console: Console) -> list[str]:
    """Write each table as Markdown and CSV, each figure as PDF, SVG and PNG, and a page that shows all of them.

    Returns the names of those that could be.
    """
    kept, out, rendered = ResultsFolder(root), root / RENDERED, []
    for name in names:
        require_known("table or figure", name, EXHIBITS)
        exhibit = EXHIBITS[name]
        try:
            shown = exhibit.render(kept, exhibit.runs(quick))
        except MissingRuns as reason:
            way_out = f"`{call(name, root, quick)}` does that"
            console.print(f"{name}: not drawn, {reason}; {way_out}.", highlight=False, soft_wrap=True)
            continue
        rendered.append(name)
        written = shown.save(out / name) if isinstance(shown, Table) else style.save(shown, out / name)
        if isinstance(shown, Table) and len(names) == 1:
            console.print(shown.markdown(), highlight=False, soft_wrap=True, markup=False)
        console.print(f"{name}: {written[-1]}", highlight=False, soft_wrap=True)
    console.print(f"all together: {index(root, out, quick)}", highlight=False, soft_wrap=True)
    return rendered


def index(root: Path, out: Path, quick: bool) -> Path:
    """Write index.html, one page with all that has been rendered from the results in `root`, and return where."""
    shown = [_shown(root, out, name, quick) for name in EXHIBITS]
    page = fill("paper.html", title="Every table and figure", note=QUICK if quick else "", exhibits=shown)
    out.mkdir(parents=True, exist_ok=True)
    storage.replace(out / "index.html", page.encode())
    return out / "index.html"


def _shown(root: Path, out: Path, name: str, quick: bool) -> dict[str, Any]:
    exhibit, table, picture = EXHIBITS[name], out / f"{name}.csv", out / f"{name}.svg"
    values: dict[str, Any] = {
        "name": name, "title": exhibit.title[:1].upper() + exhibit.title[1:], "place": exhibit.place,
        "data": ", ".join(dict.fromkeys(benchmark_title(runs.benchmark) for runs in exhibit.runs(quick))),
        "command": call(name, root, quick), "kinds": (), "table": None, "picture": None,
    }  # fmt: skip
    if table.exists():
        with table.open(newline="", encoding="utf-8") as file:
            heads, *rows = csv.reader(file)
        values |= {"kinds": ("csv", "md"), "table": Table(heads, rows)}
    elif picture.exists():
        values |= {"kinds": ("pdf", "svg", "png"), "picture": embed.themed(picture.read_text("utf-8"))}
    return values
