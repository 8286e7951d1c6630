"""Results as one HTML file that needs nothing else: `write` it for a run, or for a folder of runs."""

from pathlib import Path

from fromp.foundation import storage
from fromp.lab.report.page import render
from fromp.lab.results.store import find


def write(out: Path) -> Path:
    """Write report.html into a folder of results, or of such folders, and return where."""
    path = out / "report.html"
    storage.replace(path, render(find(out), out).encode())
    return path
