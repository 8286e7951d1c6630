"""Detectors tried on streams whose boundaries are known: delays, misses, false alarms, and what a detector costs."""

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from fromp import data, folder, metrics
from fromp.data.images import Images
from fromp.detection import Calibrated, Detector, Evidence, Verdict, Welch
from fromp.errors import FrompError, install
from fromp.examples import Batch
from fromp.experiments import PAIRS, PERMUTED_MNIST, choose
from fromp.likelihoods import Categorical
from fromp.methods.fromp import FROMP
from fromp.networks import initialise, mlp
from fromp.runs import environment, threads
from fromp.taskfree import TaskFree
from fromp.tasks import Permuted, Rotated, Split, Stream, output_a_class
from fromp.training import accuracy, hash_seed

BATCH_SIZE = 128


@dataclass(frozen=True)
class Trial:
    """A stream of minibatches: tasks in some order, each shown once, or as many minibatches as are asked for."""

    title: str
    tasks: Callable[[Images, int], Stream]
    order: Sequence[int]
    minibatches: int | None = None  # of each task

    def parts(self, images: Images, seed: int, share: float) -> Iterator[Iterator[Batch]]:
        """The minibatches of each task in turn; a share of them for a quick look."""
        tasks = self.tasks(images, seed)
        for place, number in enumerate(self.order):
            train = tasks.task(number).train
            count = round(share * (self.minibatches or -(-len(train) // BATCH_SIZE)))
            passes = (
                torch.randperm(len(train), generator=torch.Generator().manual_seed(hash_seed(seed, place, epoch)))
                for epoch in itertools.count()
            )
            batches = itertools.chain.from_iterable(order.split(BATCH_SIZE) for order in passes)
            chosen = itertools.islice(batches, count)
            yield map(train.take, chosen)


def _permuted(images: Images, seed: int) -> Stream:
    return Permuted(images, 10, 10, seed)


TRIALS: dict[str, Trial] = {
    "permuted": Trial("ten permutations of the pixels", _permuted, range(10)),
    "split": Trial("pairs of digits, one head", lambda images, seed: Split(images, PAIRS, output_a_class), range(5)),
    "rotated": Trial(
        "turned by 10 degrees more from task to task",
        lambda images, seed: Rotated(images, [10.0 * place for place in range(10)], 10),
        range(10),
    ),
    "recurring": Trial("three permutations that come back", _permuted, (0, 1, 0, 1, 2, 0, 2, 1)),
    "stationary": Trial("one task of 50,000 minibatches", _permuted, (0,), 50_000),
}


@final
class OnLoss(Detector):
    """A drift detector of the library river, which gets the mean loss of each minibatch before it is trained on."""

    names = ("loss",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        super().__init__(None)

    def begin_task(self) -> None:
        self._drift = self._make()

    def examine(self, evidence: Evidence, armed: bool = True) -> Verdict:
        self.values = [float(evidence.nll.detach().mean())]
        self._drift.update(self.values[0])
        return Verdict.NEW if armed and self._drift.drift_detected else Verdict.SAME

    def state(self) -> dict[str, Any]:
        raise FrompError("a river detector cannot be saved; use Calibrated or Welch.")

    def restore(self, state: dict[str, Any]) -> None:
        raise FrompError("a river detector cannot be restored; use Calibrated or Welch.")


def _river(name: str, **options: Any) -> Callable[[], Detector]:
    def make() -> Detector:
        try:
            from river import drift
        except ImportError as error:
            raise FrompError(f"river is not installed; {install('drift')}, or leave adwin and kswin out.") from error
        return OnLoss(lambda: getattr(drift, name)(**options))

    return make


DETECTORS: dict[str, Callable[[], Detector]] = {
    "calibrated": Calibrated,
    "divergence": Calibrated.on_divergence,
    "welch": Welch,
    "adwin": _river("ADWIN"),
    "kswin": _river("KSWIN", seed=0),
}


@final
class Timed(Detector):
    """Another detector, and how long it took for the last minibatch."""

    names = ()

    def __init__(self, detector: Detector) -> None:
        self._detector, self.seconds = detector, 0.0
        super().__init__(detector.examples)

    def begin_task(self) -> None:
        self._detector.begin_task()

    def examine(self, evidence: Evidence, armed: bool = True) -> Verdict:
        start = time.perf_counter()
        verdict = self._detector.examine(evidence, armed)
        self.seconds = time.perf_counter() - start
        self.values, self.fresh = self._detector.values, self._detector.fresh
        return verdict

    def state(self) -> dict[str, Any]:
        return self._detector.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._detector.restore(state)


def main(
    out: Path, trials: Sequence[str], detectors: Sequence[str], seeds: int, dataset: str = "mnist", share: float = 1.0
) -> None:
    """Try every detector on every stream, those apart that `out` has already; a file a stream, and one table."""
    for trial in trials:
        choose("stream", trial, TRIALS)
        path = out / f"{trial}.json"
        runs = json.loads(path.read_text())["runs"] if path.exists() else []
        for detector, seed in itertools.product(detectors, range(seeds)):
            wanted = {"detector": detector, "seed": seed, "dataset": dataset, "share": share}
            if not any(wanted.items() <= one.items() for one in runs):
                runs.append(run(trial, detector, seed, dataset, share))
                out.mkdir(parents=True, exist_ok=True)
                report = {"stream": trial, "title": TRIALS[trial].title, "environment": environment(), "runs": runs}
                folder.replace(path, (json.dumps(report, indent=1) + "\n").encode())
                print(table([report]).splitlines()[-1], flush=True)
    print(table([json.loads((out / f"{trial}.json").read_text()) for trial in trials]))


def table(reports: Sequence[dict[str, Any]]) -> str:
    """The reports as Markdown, for the terminal and for docs/task-free.md; a row sums up all seeds."""
    lines = [
        "| stream | detector | changes found | median delay | false alarms | % of a step | accuracy, % |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for report in reports:
        for detector in dict.fromkeys(one["detector"] for one in report["runs"]):
            runs = [one for one in report["runs"] if one["detector"] == detector]
            delays = [delay for one in runs for delay in one["delays"]]
            found = [delay for delay in delays if delay is not None]
            lines.append(
                f"| {report['title']} | `{detector}` | {len(found)} of {len(delays)} "
                f"| {f'{statistics.median(found):g}' if found else ''} "
                f"| {sum(one['false_alarms'] for one in runs)} in {sum(one['minibatches'] for one in runs):,} "
                f"| {100 * statistics.mean(one['cost'] for one in runs):.0f} "
                f"| {100 * statistics.mean(one['average_accuracy'] for one in runs):.1f} |"
            )
    return "\n".join(lines)


def run(trial: str, detector: str, seed: int = 0, dataset: str = "mnist", share: float = 1.0) -> dict[str, Any]:
    """One detector on one stream, with FROMP learning from what it finds: everything there is to say of it."""
    choose("stream", trial, TRIALS)
    choose("detector", detector, DETECTORS)
    settings, images, stream = PERMUTED_MNIST, data.load(dataset), TRIALS[trial]
    pixels = images.train_x[0].numel()
    model = initialise(lambda: mlp(pixels, settings.hidden, 10), seed)
    method = FROMP(model, Categorical(), settings.tau, 100, settings.prior_precision, settings.jitter)
    timed = Timed(DETECTORS[detector]())
    clip = settings.optimisation().clip
    learner = TaskFree(method, settings.optimisation().optimizer(method.parameters()), timed, reservoir=2000, clip=clip)
    starts, seen, looking, learning = [], 0, 0.0, 0.0
    with threads(model):
        model.train()
        for part in stream.parts(images, seed, share):
            starts.append(seen)
            for x, y in part:
                start = time.perf_counter()
                verdict = learner.observe(x, y)
                took = time.perf_counter() - start
                if verdict is not Verdict.NEW:  # that takes the time to remember a task
                    looking += timed.seconds if verdict is Verdict.SAME else took
                    learning += took - timed.seconds if verdict is Verdict.SAME else 0.0
                seen += 1
    tests = [stream.tasks(images, seed).task(number).test for number in sorted(set(stream.order))]
    return {
        "stream": trial, "detector": detector, "seed": seed, "dataset": dataset, "share": share, "minibatches": seen,
        **metrics.detection(starts[1:], learner.boundaries),
        "cost": looking / learning,
        "average_accuracy": sum(accuracy(method, test, None, 0) for test in tests) / len(tests),
    }  # fmt: skip
