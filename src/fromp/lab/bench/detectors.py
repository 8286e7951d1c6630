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
from torch import nn

from fromp.foundation import storage
from fromp.foundation.errors import FrompError, install
from fromp.foundation.examples import Batch
from fromp.foundation.state import State
from fromp.lab import data
from fromp.lab.benchmarks.catalogue import PAIRS, require_known
from fromp.lab.benchmarks.streams import Permuted, Rotated, Split, Stream, output_a_class
from fromp.lab.data.arrays import Arrays
from fromp.lab.engine.fit import accuracy, hash_seed
from fromp.lab.engine.jobs import exclusive_folder
from fromp.lab.engine.threads import threads_for
from fromp.lab.methods.base import Penalised
from fromp.lab.methods.fromp import CARD
from fromp.lab.results import metrics
from fromp.lab.results.environment import environment
from fromp.lab.results.plan import Plan
from fromp.learn.networks import initialise, mlp
from fromp.likelihoods import Categorical
from fromp.regulariser import FROMP
from fromp.taskfree.detectors import Calibrated, Detector, Evidence, Verdict, Welch
from fromp.taskfree.learner import TaskFree

BATCH_SIZE = 128
MOST_ALARMS = 40  # after which a trial is over: every one of them is a task to remember, and makes a step slower
COSTS = ("cost", "first_task_cost", "sample_cost")  # detection, detection in the first task, the sample


@dataclass(frozen=True)
class Trial:
    """A stream of minibatches: tasks in some order, each shown once, or as many minibatches as are asked for."""

    title: str
    tasks: Callable[[Arrays, int], Stream]
    order: Sequence[int]
    minibatches: int | None = None  # minibatches per task

    def parts(self, images: Arrays, seed: int, share: float) -> Iterator[Iterator[Batch]]:
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


def _permuted(images: Arrays, seed: int) -> Stream:
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

    def state_dict(self) -> State:
        raise FrompError("a river detector cannot be saved; use Calibrated or Welch.")

    def load_state_dict(self, state: State) -> None:
        raise FrompError("a river detector cannot be restored; use Calibrated or Welch.")


def _river(name: str, **options: Any) -> Callable[[FROMP], Detector]:
    def make(regulariser: FROMP) -> Detector:
        try:
            from river import drift
        except ImportError as error:
            raise FrompError(f"river is not installed; {install('drift')}, or leave adwin and kswin out.") from error
        return OnLoss(lambda: getattr(drift, name)(**options))

    return make


DETECTORS: dict[str, Callable[[FROMP], Detector]] = {
    "calibrated": lambda regulariser: Calibrated(),
    "divergence": Calibrated.on_divergence,
    "welch": lambda regulariser: Welch(),
    "adwin": _river("ADWIN"),
    "kswin": _river("KSWIN", seed=0),
}


class Stopwatch:
    """A function, and how long the processor has been at it in all."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self.seconds = function, 0.0

    def __call__(self, *given: Any) -> Any:
        start = time.process_time()
        try:
            return self._function(*given)
        finally:
            self.seconds += time.process_time() - start


def main(
    out: Path, trials: Sequence[str], detectors: Sequence[str], seeds: int, dataset: str = "mnist", share: float = 1.0
) -> None:
    """Try every detector on every stream, those apart that `out` has already; one file per stream, and one table."""
    for trial in trials:
        require_known("stream", trial, TRIALS)
    for detector in detectors:
        require_known("detector", detector, DETECTORS)
        DETECTORS[detector](FROMP(nn.Linear(2, 2), Categorical()))  # what it needs may not be installed
    with exclusive_folder(out):
        _try_all(out, trials, detectors, seeds, dataset, share)
    print(table([json.loads((out / f"{trial}.json").read_text()) for trial in trials]))


def _try_all(
    out: Path, trials: Sequence[str], detectors: Sequence[str], seeds: int, dataset: str, share: float
) -> None:
    for trial in trials:
        path = out / f"{trial}.json"
        runs = json.loads(path.read_text())["runs"] if path.exists() else []
        for detector, seed in itertools.product(detectors, range(seeds)):
            wanted = {"detector": detector, "seed": seed, "dataset": dataset, "share": share}
            if not any(wanted.items() <= one.items() for one in runs):
                runs.append(run(trial, detector, seed, dataset, share))
                report = {"stream": trial, "title": TRIALS[trial].title, "environment": environment(), "runs": runs}
                storage.replace(path, (json.dumps(report, indent=1) + "\n").encode())
                own = [one for one in runs if _kind(one) == _kind(runs[-1])]
                print(table([{**report, "runs": own}]).splitlines()[-1], flush=True)


def table(reports: Sequence[dict[str, Any]]) -> str:
    """The reports as Markdown, for the terminal and for docs/task-free.md; a row sums up all seeds."""
    lines = [
        "| stream | detector | changes found | delay: median, largest | false alarms "
        "| looking, % of a step | in the first task | sample, % of a step | accuracy, % | seeds |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for report in reports:
        for kind in sorted(set(map(_kind, report["runs"])), key=lambda kind: (list(DETECTORS).index(kind[0]), kind)):
            runs = [one for one in report["runs"] if _kind(one) == kind]
            detector, dataset, share = kind
            title = report["title"] + ("" if dataset == "mnist" else f", {dataset}") + _of_each_task(share)
            delays = [delay for one in runs for delay in one["delays"]]
            found = [delay for delay in delays if delay is not None]
            costs = [100 * statistics.mean(one[name] for one in runs) for name in COSTS]
            lines.append(
                f"| {title} | `{detector}` | {len(found)} of {len(delays)} "
                f"| {f'{statistics.median(found):g}, {max(found)}' if found else ''} "
                f"| {sum(one['false_alarms'] for one in runs)} in {sum(one['minibatches'] for one in runs):,} "
                f"| {' | '.join(f'{cost:.0f}' for cost in costs)} "
                f"| {100 * statistics.mean(one['average_accuracy'] for one in runs):.1f} | {len(runs)} |"
            )
    return "\n".join(lines)


def _kind(one: dict[str, Any]) -> tuple[str, str, float]:
    return one["detector"], one["dataset"], one["share"]


def _of_each_task(share: float) -> str:
    return "" if share == 1 else f", {100 * share:g} % of each task"


def run(trial: str, detector: str, seed: int = 0, dataset: str = "mnist", share: float = 1.0) -> dict[str, Any]:
    """One detector on one stream, with FROMP learning from what it finds: everything there is to say of it."""
    require_known("stream", trial, TRIALS)
    require_known("detector", detector, DETECTORS)
    plan, images, stream = Plan.of("permuted-mnist", CARD.name), data.load(dataset), TRIALS[trial]
    pixels = images.train_x[0].numel()
    model = initialise(lambda: mlp(pixels, plan.settings.hidden, 10), seed)
    method = FROMP(model, Categorical(), plan.options.tau, 100, plan.options.prior_precision, plan.options.jitter)
    optimizer, looks = plan.training.optimizer(list(model.parameters())), DETECTORS[detector](method)
    learner = TaskFree(method, optimizer, looks, reservoir=2000, clip=plan.training.clip_norm)
    examine, keep = Stopwatch(looks.examine), Stopwatch(learner.reservoir.add)
    vars(looks)["examine"], vars(learner.reservoir)["add"] = examine, keep
    starts, seen, costs = [], 0, []

    def bearable(_: Any) -> bool:
        return len(learner.boundaries) < MOST_ALARMS

    with threads_for(model):
        model.train()
        for part in itertools.takewhile(bearable, stream.parts(images, seed, share)):
            starts.append(seen)
            looking = keeping = learning = 0.0
            for x, y in itertools.takewhile(bearable, part):
                examine.seconds = keep.seconds = 0.0
                start = time.process_time()
                verdict = learner.observe(x, y)
                took = time.process_time() - start
                seen += 1
                if verdict is Verdict.NEW:  # that takes the time to remember a task
                    continue
                keeping += keep.seconds
                looking += examine.seconds if verdict is Verdict.SAME else took  # its pass has to be made again
                learning += took - examine.seconds - keep.seconds if verdict is Verdict.SAME else 0.0
            costs.append((looking, keeping, learning))
    looking, keeping, learning = map(sum, zip(*costs, strict=True))
    tests = [stream.tasks(images, seed).task(number).test for number in sorted(set(stream.order))]
    return {
        "stream": trial, "detector": detector, "seed": seed, "dataset": dataset, "share": share, "minibatches": seen,
        **metrics.detection(starts[1:], learner.boundaries),
        "cost": looking / learning, "first_task_cost": costs[0][0] / costs[0][2], "sample_cost": keeping / learning,
        "average_accuracy": sum(accuracy(Penalised(method), test, None, 0) for test in tests) / len(tests),
    }  # fmt: skip
