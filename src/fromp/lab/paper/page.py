"""One page with every table and figure that has been rendered; it needs nothing but itself."""

import csv
import html
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from fromp.foundation import storage
from fromp.lab.paper.exhibits import EXHIBITS, call
from fromp.lab.paper.tables import benchmark_title
from fromp.lab.report import embed

QUICK = (
    "A quick version: scikit-learn's digits instead of MNIST and CIFAR, a fifth of the epochs at three times the "
    "learning rate, two seeds. It shows how things go, not the paper's numbers."
)


def index(root: Path, out: Path, quick: bool) -> Path:
    """Write index.html beside the tables and figures of the results in `root`, and return where."""
    sections = [_section(root, out, name, quick) for name in EXHIBITS]
    note = f'<p class="note warn">{QUICK}</p>' if quick else ""
    lead = "Mean ± standard error over seeds, in percent. Select a heading to sort by it."
    title = "Every table and figure"
    template = Template(files("fromp.lab.report").joinpath("page.html").read_text("utf-8"))
    page = template.substitute(
        title=title, panel="100%", content=f'<header><h1>{title}</h1><p class="lead">{lead}</p>{note}</header>'
        + "".join(sections),
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    storage.replace(out / "index.html", page.encode())
    return out / "index.html"


def _section(root: Path, out: Path, name: str, quick: bool) -> str:
    exhibit, table, picture = EXHIBITS[name], out / f"{name}.csv", out / f"{name}.svg"
    if table.exists():
        with table.open(newline="", encoding="utf-8") as file:
            shown = f'<div class="card scroll">{_table(list(csv.reader(file)))}</div>'
        links = _links(name, "csv", "md")
    elif picture.exists():
        shown = _figure(picture.read_text("utf-8"), exhibit.title)
        links = _links(name, "pdf", "svg", "png")
    else:
        shown, links = "", f"not rendered yet: <code>{html.escape(call(name, root, quick))}</code>"
    title = html.escape(exhibit.title[:1].upper() + exhibit.title[1:])
    data = ", ".join(dict.fromkeys(benchmark_title(runs.benchmark) for runs in exhibit.runs(quick)))
    note = f"{html.escape(f'{exhibit.place} · {data}')} · {links}"
    return f'<section><h2>{title}</h2><p class="note">{note}</p>{shown}</section>'


def _figure(svg: str, title: str) -> str:
    """Somewhat larger than in print, and no wider than the page."""
    points = re.search(r'<svg [^>]*?width="([\d.]+)pt"', svg)
    width = f' style="--width: {1.7 * float(points[1]):.0f}px"' if points else ""
    return f'<div class="card exhibit"{width}>{embed.inline(svg, title)}</div>'


def _links(name: str, *kinds: str) -> str:
    return " · ".join(f'<a href="./{name}.{kind}">{kind}</a>' for kind in kinds)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in rows[0])
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[1:])
    return f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(text: str) -> str:
    """A cell that sorts by the number it begins with, if it does."""
    number = re.match(r"-?\d+(\.\d+)?(?!\w)", text)
    return f'<td data-value="{number[0]}">{html.escape(text)}</td>' if number else f"<td>{html.escape(text)}</td>"
