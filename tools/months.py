"""How good `fromp learn` is on the streams of docs/library/months-apart.md, beside other ways to learn the same months.

    python tools/months.py [--seeds 3]

writes results/months/STREAM.json: the score on the held-out rows of each month after the last one. All ways have the
same network, rows, memory and epochs; the strength of a penalty is chosen in each month as `fromp learn` does, on
held-out training rows.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor

from fromp import Composed, Divergence, Hold, Labels, Mixtures, Remembered
from fromp.lab.results.environment import environment
from fromp.learn import fitting, method
from fromp.learn.files import read_table
from fromp.learn.month import MEMORY_SIZE, SHARE_KEPT, Choices, Examples, begun, continued, examples, score
from fromp.learn.saved import Saved

KEPT = Path(__file__).resolve().parent.parent / "results" / "months"
EPOCHS = 20
Parts = Sequence[tuple[np.ndarray, np.ndarray]]  # inputs and labels of each month


def tumours() -> Parts:
    """scikit-learn's breast cancer data, the smallest tumours first."""
    data = load_breast_cancer()
    rows = np.array_split(data.data[:, 0].argsort(), 3)
    return [(data.data[part], data.target_names[data.target[part]]) for part in rows]


def digits() -> Parts:
    """scikit-learn's digits as images: four of them, three others, the last three."""
    data = load_digits()
    groups = [np.isin(data.target, group) for group in ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))]
    return [(data.images[part], data.target[part].astype(str)) for part in groups]


class MixedWithLabels:
    """Mixtures of remembered points and their labels, of one strength; for `fitting.choose`."""

    def __init__(self, saved: Saved, model: torch.nn.Module) -> None:
        self._tau = 1.0
        self._reg = Composed(model, saved.label.likelihood, self._holds())

    def _holds(self) -> list[Hold]:
        return [Hold(Mixtures(256), Divergence(2), self._tau), Hold(Remembered(128), Labels(), 1.0)]

    @property
    def tau(self) -> float:
        return self._tau

    @tau.setter
    def tau(self, value: float) -> None:
        self._tau = value
        self._reg._holds = tuple(self._holds())

    @property
    def memory_size(self) -> int:
        return self._reg.memory_size

    @memory_size.setter
    def memory_size(self, value: int) -> None:
        self._reg.memory_size = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reg, name)


def fromp(saved: Saved, model: torch.nn.Module) -> Any:
    return method.regulariser(model, saved.label.likelihood, MEMORY_SIZE)


WAYS: dict[str, tuple[Callable[[Saved, torch.nn.Module], Any], float | None, bool]] = {  # how; tau; raw columns
    "plain training on the columns as they are": (fromp, 0.0, True),
    "plain training": (fromp, 0.0, False),
    "`fromp learn`": (fromp, None, False),
    "mixtures and labels (`Composed`)": (MixedWithLabels, None, False),
}
JOINT = "all months at once"


def learned(files: Sequence[Path], how: Any, tau: float | None, raw: bool, seed: int) -> list[float]:
    """The score on each month after the last one."""
    saved, months = opened(files, seed, raw)
    model = saved.network.build(saved.encoding.shape, saved.settings["outputs"], seed).eval()
    reg = how(saved, model)
    for number, month in enumerate(months):
        x, y = training(month)
        reg.memory_size = max(saved.label.num_outputs, min(MEMORY_SIZE, len(x) // SHARE_KEPT))
        own = fitting.choose(reg, x, y, saved.label.held_out(y), EPOCHS, tau, seed + number, unwatched)
        reg.tau = own.tau
        fitting.fit(reg, x, y, EPOCHS, seed + number, lambda share: None)
        reg.end_task((x, y))
    return [score(saved.label, reg, month) for month in months]


def joint(files: Sequence[Path], seed: int) -> list[float]:
    """The same network trained on all months together."""
    saved, months = opened(files, seed)
    reg = fromp(saved, saved.network.build(saved.encoding.shape, saved.settings["outputs"], seed))
    x, y = map(torch.cat, zip(*map(training, months), strict=True))
    fitting.fit(reg, x, y, EPOCHS, seed, lambda share: None)
    return [score(saved.label, reg, month) for month in months]


def opened(files: Sequence[Path], seed: int, raw: bool = False) -> tuple[Saved, list[Examples]]:
    """What the first month fixes with the classes of all, and each month's rows."""
    tables = [read_table(file, "utf-8") for file in files]
    saved = begun(tables[0], Choices(network="mlp", seed=seed))
    for table in tables[1:]:
        saved = continued(saved, table, Choices())
    months = [examples(saved, table) for table in tables]
    if raw:
        values = [torch.from_numpy(np.load(file)["x"]).float() for file in files]
        months = [Examples(x, month.y, month.test, month.replaced) for x, month in zip(values, months, strict=True)]
    return saved, months


def training(month: Examples) -> tuple[Tensor, Tensor]:
    return month.x[~month.test], month.y[~month.test]


def unwatched(what: str, share: float) -> None:
    """Nobody watches."""


def measured(parts: Parts, seeds: int, raw: bool) -> dict[str, list[list[float]]]:
    """Way -> seed -> month -> score."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.npz") for number in range(len(parts))]
        for file, (x, y) in zip(files, parts, strict=True):
            rows = np.random.default_rng(0).permutation(len(x))
            np.savez(file, x=x[rows], y=y[rows])
        found = {
            way: [learned(files, how, tau, of_raw, seed) for seed in range(seeds)]
            for way, (how, tau, of_raw) in WAYS.items()
            if raw or not of_raw
        }
        return {**found, JOINT: [joint(files, seed) for seed in range(seeds)]}


def table(found: dict[str, Any]) -> str:
    """Mean over seeds for each month, and the mean over months with its standard error."""
    from fromp.lab.results import metrics
    from fromp.lab.results.format import Table, percent

    rows = []
    for way, runs in found["scores"].items():
        means = metrics.summarise([sum(run) / len(run) / 100 for run in runs])
        rows.append([way, *(f"{sum(scores) / len(scores):.1f}" for scores in zip(*runs, strict=True)), percent(means)])
    months = [f"month {number + 1}" for number in range(len(rows[0]) - 2)]
    return Table(["", *months, "mean ± standard error (seeds)"], rows).markdown()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure `fromp learn` beside other ways.")
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    KEPT.mkdir(parents=True, exist_ok=True)
    for stream, raw in ((tumours, True), (digits, False)):
        scores = measured(stream(), seeds, raw)
        found = {"epochs": EPOCHS, "scores": scores, "environment": environment()}
        (KEPT / f"{stream.__name__}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(stream.__name__, table(found), sep="\n")


if __name__ == "__main__":
    main()
