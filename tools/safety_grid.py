"""The defaults of FROMP and MixedPast on small streams with ordinary optimisers, beside plain training.

python tools/safety_grid.py              the grid on test data: results/defaults/safety.json, about 12 minutes
python tools/safety_grid.py choose       what the defaults were chosen from: held-out data, other seeds,
                                         results/defaults/chosen.json, about 8 minutes
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import small_streams
import torch
from small_streams import OPTIMISERS, STREAMS, average, course, learn
from torch import nn

from fromp import prior
from fromp.foundation import storage
from fromp.lab.results.environment import environment
from fromp.lab.results.format import Table, percent
from fromp.lab.results.metrics import summarise
from fromp.likelihoods import Likelihood
from fromp.metrics.divergence import Divergence
from fromp.metrics.logits import Logits
from fromp.mixed_past import MixedPast
from fromp.protocol import Regulariser
from fromp.regulariser import FROMP

RESULTS = Path(__file__).resolve().parent.parent / "results" / "defaults"
SEEDS, SEEDS_TO_CHOOSE = (0, 1, 2, 3, 4), (10, 11)

Regularise = Callable[[nn.Module, Likelihood], Regulariser]
COMPARED: dict[str, Regularise | None] = {
    "plain": None,
    "FROMP, jitter 1e-5": partial(FROMP, jitter=1e-5),  # the default of before
    "FROMP": FROMP,
    "MixedPast": MixedPast,
}
SHARES, PRECISIONS, STRENGTHS = (0.1, 0.5, 2.0), (1e-3, 1e-1), (0.1, 0.5, 2.0)
CHOSEN_BY = ("SGD 0.1, momentum 0.9", "AdamW 1e-2, weight decay 0.1")


def measure(name: str, compared: Mapping[str, Regularise | None], streams: Sequence[str], optimisers: Sequence[str],
            seeds: Sequence[int], held_out: bool) -> None:  # fmt: skip
    """One row per stream, optimiser, way and seed: the mean score over its tasks, and the highest penalty.

    Rows are kept as they come, and those that are kept already are not run again.
    """
    rows = _kept(name)
    done = {(row["stream"], row["optimiser"], row["way"], row["seed"]) for row in rows}
    for optimiser, stream, seed in product(optimisers, streams, seeds):
        for way, regularise in compared.items():
            if (stream, optimiser, way, seed) in done:
                continue
            data = course(stream, seed, held_out)
            model, highest = learn(data, OPTIMISERS[optimiser], regularise, seed)
            row = {"stream": stream, "optimiser": optimiser, "way": way, "seed": seed}
            rows.append({**row, "score": average(model, data), "highest_penalty": highest})
            _keep(name, rows)
            print(*rows[-1].values(), sep="\t", flush=True)


def choose() -> None:
    """Held-out scores for several rho and delta of FROMP, and for several metrics and strengths of MixedPast."""
    among = partial(measure, "chosen.json", streams=list(STREAMS), optimisers=CHOSEN_BY, seeds=SEEDS_TO_CHOOSE,
                    held_out=True)  # fmt: skip
    among(compared={"plain": None})
    kept = prior.SHARE_OF_NOISE
    for share in SHARES:
        prior.SHARE_OF_NOISE = share
        among(compared={f"rho {share:g}": FROMP})
    prior.SHARE_OF_NOISE = kept
    among(compared={f"delta {delta:g}": partial(FROMP, prior_precision=delta) for delta in PRECISIONS})
    for metric, scale in ((Logits(), 0.1), (Divergence(2.0), 1.0)):
        for strength in (scale * strength for strength in STRENGTHS):
            given = partial(MixedPast, metric=metric, strength=strength, present_strength=strength)
            among(compared={f"{metric}, {strength:g}": given})


def _kept(name: str) -> list[dict[str, Any]]:
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []


def _keep(name: str, rows: list[dict[str, Any]]) -> None:
    settings = {"tasks": small_streams.TASKS, "steps": small_streams.STEPS, "batch_size": small_streams.BATCH}
    lines = ",\n".join(json.dumps(row) for row in rows)
    about = json.dumps({"settings": settings, "environment": environment()}, indent=1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    storage.replace(RESULTS / name, f'{about[:-2]},\n "rows": [\n{lines}\n]}}\n'.encode())


def table(found: dict[str, Any]) -> str:
    """One row per stream and way, one column per optimiser: the mean score in percent and its standard error.

    Only cells that all ways have with the same seeds, so that they can be compared; "–" is not run to the end.
    """
    scores: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    for row in found["rows"]:
        scores[row["stream"], row["optimiser"], row["way"]][row["seed"]] = row["score"]
    streams, optimisers, ways = (list(dict.fromkeys(key[k] for key in scores)) for k in range(3))
    rows = []
    for stream in streams:
        complete = [o for o in optimisers if all(len(scores[stream, o, way]) >= len(SEEDS) for way in ways)]
        for way in ways if complete else ():
            cells = [
                percent(summarise([*scores[stream, o, way].values()])) if o in complete else "–" for o in optimisers
            ]
            rows.append([stream if way == ways[0] else "", way, *cells])
    return Table(["", "", *optimisers], rows).markdown()


def choice(found: dict[str, Any]) -> str:
    """One row per way that was tried on held-out data, one column per optimiser: the mean score over all streams."""
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in found["rows"]:
        scores[row["way"], row["optimiser"]].append(row["score"])
    ways, optimisers = (list(dict.fromkeys(key[k] for key in scores)) for k in range(2))
    cells = [[way, *(f"{100 * sum(s) / len(s):.2f}" for s in (scores[way, o] for o in optimisers))] for way in ways]
    return Table(["", *optimisers], cells).markdown()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:] == ["choose"]:
        choose()
    else:
        measure("safety.json", COMPARED, list(STREAMS), list(OPTIMISERS), SEEDS, held_out=False)
