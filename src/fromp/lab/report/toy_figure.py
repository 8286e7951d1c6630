"""The paper's toy figure, from a run's snapshots: `python -m fromp.lab.report.toy_figure FOLDER PICTURE [SEED]`.

The README's picture is that of `make demo`:

    python -m fromp.lab.report.toy_figure runs/demo docs/toy.png
"""

import sys
from pathlib import Path

from fromp.foundation.errors import CheckpointError
from fromp.lab.report import figures
from fromp.lab.report.plane import boundaries
from fromp.lab.results.store import find

DPI = 98  # makes it 1200 pixels wide


def main(folder: Path, picture: Path, seed: int | None = None) -> None:
    """Draw a seed, the middle one if none is given, after the first task, the second and the last."""
    experiment = find(folder)[0]
    every = boundaries(experiment, experiment.middle_seed if seed is None else seed)
    if not every:
        raise CheckpointError(f"{folder} holds no snapshots of that seed; `fromp run toy --out {folder}` takes them.")
    chosen = [boundary for boundary in every if boundary.task in (1, 2, len(every))]
    figures.toy_strip(chosen).savefig(picture, dpi=DPI)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
