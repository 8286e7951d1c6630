"""Brings figures of the paper from results/paper, where `fromp reproduce NAME` leaves them, into docs/figures.

    python tools/figures.py [--results DIR]

A figure that is not rendered there stays as it is. The cost of a step is drawn from DIR/bench/bench.json, which
`fromp bench` wrote.
"""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from fromp.lab.report.figures import cost, style

FIGURES = (
    "cifar-bars", "entropy", "memorable-cifar", "memorable-mnist", "memory-mnist", "task-boundaries", "toy",
    "toy-larger-deviation", "toy-less-data", "toy-more-data", "toy-overlapping", "toy-sixth-task",
)  # fmt: skip
COLOURS = 256  # half of the file, and the same to the eye
WIDEST = 1800  # pixels


def copy(source: Path, target: Path) -> None:
    """A picture on white with fewer colours, not wider than a page needs."""
    with Image.open(source) as opened:
        picture = opened.convert("RGBA")
    if picture.width > WIDEST:
        picture = picture.resize((WIDEST, picture.height * WIDEST // picture.width), Image.Resampling.LANCZOS)
    paper = Image.new("RGBA", picture.size, "white")
    paper.alpha_composite(picture)
    paper.convert("RGB").quantize(COLOURS, Image.Quantize.MEDIANCUT).save(target, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Bring rendered figures of the paper into docs/figures.")
    parser.add_argument("--results", type=Path, default=Path("results"))
    results, figures = parser.parse_args().results, Path("docs/figures")
    for name in FIGURES:
        if (source := results / "paper" / f"figure-{name}.png").exists():
            copy(source, target := figures / f"{name}.png")
            print(target)
    if (measured := results / "bench" / "bench.json").exists():
        with TemporaryDirectory() as scratch:
            style.save(cost.step_cost(json.loads(measured.read_text())["steps"]), Path(scratch) / "step-cost")
            copy(Path(scratch) / "step-cost.png", target := figures / "step-cost.png")
        print(target)


if __name__ == "__main__":
    main()
