"""Results as one HTML file that needs nothing else: `write` it for a run, or for a folder of runs."""

from pathlib import Path

from fromp import folder
from fromp.report.experiment import find
from fromp.report.page import render


def write(out: Path) -> Path:
    """Write report.html into a folder of results, or of such folders, and return where."""
    path = out / "report.html"
    folder.replace(path, render(find(out), out).encode())
    return path
