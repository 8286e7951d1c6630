"""A run's results as one HTML file."""

from pathlib import Path


def write(out: Path) -> Path:
    """Write report.html into a folder of results, and return where."""
    path = out / "report.html"
    path.write_text("")
    return path
