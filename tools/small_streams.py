"""Small streams of real data, ordinary optimisers, and a plain training loop: what defaults are tried on.

Every stream has three tasks and trains for a second. Inputs keep the scale that their source gives where the name says
so: pixels 0 to 255, measurements from 0.001 to 4,254, sparse counts of words. Blobs are generated.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from opinions import KINDS, sentences
from sklearn import datasets
from sklearn.feature_extraction.text import CountVectorizer
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from fromp.foundation.errors import FrompError
from fromp.foundation.examples import TensorExamples
from fromp.functional import Functional
from fromp.lab.benchmarks.streams import Task
from fromp.lab.benchmarks.toy import TOY_VARIATIONS, Blobs
from fromp.likelihoods import Categorical, Gaussian, Likelihood
from fromp.protocol import Regulariser

TASKS, STEPS, BATCH = 3, 100, 32

Optimise = Callable[[Iterable[nn.Parameter]], Optimizer]
OPTIMISERS: dict[str, Optimise] = {
    "SGD 0.1, momentum 0.9": partial(SGD, lr=0.1, momentum=0.9),
    "AdamW 1e-2, weight decay 0.1": partial(AdamW, lr=1e-2, weight_decay=0.1),
    "Adam 3e-3": partial(Adam, lr=3e-3),
    "SGD 0.1, momentum 0.9, weight decay 5e-4": partial(SGD, lr=0.1, momentum=0.9, weight_decay=5e-4),
    "SGD 0.1": partial(SGD, lr=0.1),
}


@dataclass(frozen=True)
class Course:
    """The tasks of a stream, what network learns them, and what its outputs mean."""

    tasks: Sequence[Task]
    network: Callable[[], nn.Module]
    likelihood: Likelihood


def course(name: str, seed: int, held_out: bool) -> Course:
    """A stream by name; tested on a fifth of its data, or on another fifth, held out of the training data."""
    return STREAMS[name](_Division(seed, held_out))


def learn(
    course: Course,
    optimise: Optimise,
    regulariser: Callable[[nn.Module, Likelihood], Regulariser] | None,
    seed: int,
    steps: int = STEPS,
    network: Callable[[], nn.Module] | None = None,
    ended: Callable[[nn.Module, int], None] = lambda model, task: None,
) -> tuple[nn.Module, float]:
    """The model after all tasks, and the highest penalty on the way. `ended` is called after each task."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = (network or course.network)()
    reg = regulariser(model, course.likelihood) if regulariser else None
    draws, highest = torch.Generator().manual_seed(seed), 0.0
    for index, task in enumerate(course.tasks):
        optimizer = optimise(model.parameters())
        model.train()
        for step in range(steps):
            x, y = tensors(task.train, torch.randint(len(task.train), (BATCH,), generator=draws))
            loss = course.likelihood.nll(_outputs(model, x, task), y).mean()
            if reg is not None:
                penalty = reg.penalty(x) if isinstance(reg, Functional) else reg.penalty()
                loss = loss + penalty
                highest = max(highest, float(penalty.detach())) if step % 5 == 0 else highest
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if reg is not None:
            try:
                reg.end_task(task.train, task.head)
            except FrompError:  # something is not finite: training has diverged, and there is nothing to hold
                break
        ended(model, index)
    return model, highest


def score(model: nn.Module, course: Course, task: Task) -> float:
    """Accuracy; in regression the share of the variance that is explained, from 0 up."""
    model.eval()
    x, y = tensors(task.test)
    with torch.no_grad():
        f = _outputs(model, x, task)
    if isinstance(course.likelihood, Categorical):
        return float((f.argmax(1) == y).double().mean())
    return float((1 - (f - y).square().mean() / y.var()).nan_to_num(0.0).clamp_min(0))


def average(model: nn.Module, course: Course) -> float:
    """The mean score over all tasks."""
    return sum(score(model, course, task) for task in course.tasks) / len(course.tasks)


def tensors(examples: TensorExamples, which: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Inputs and labels of all examples, or of some."""
    x, y = examples.take(torch.arange(len(examples)) if which is None else which)
    assert isinstance(x, Tensor)
    return x, y


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Module:
    """Two hidden layers of ReLUs."""
    layers = (nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class _Division:
    """Three fifths to learn from, one to choose settings by, and one to test on."""

    seed: int
    held_out: bool

    def task(self, name: str, x: Tensor, y: Tensor, head: tuple[int, ...] | None = None) -> Task:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(self.seed))
        fifth = len(x) // 5
        test, choose, train = order[:fifth], order[fifth : 2 * fifth], order[2 * fifth :]
        tested = choose if self.held_out else test
        return Task(name, TensorExamples(x[train], y[train]), TensorExamples(x[tested], y[tested]), head)

    def permuted(self, x: Tensor, y: Tensor) -> list[Task]:
        """The columns in another order in each task."""
        generator = torch.Generator().manual_seed(self.seed)
        orders = [torch.randperm(x.shape[1], generator=generator) for _ in range(TASKS)]
        return [self.task(f"order {index}", x[:, order], y) for index, order in enumerate(orders)]


def _digits_split(of: _Division) -> Course:
    x, y = _digits(1.0)
    groups = [(2 * task, 2 * task + 1) for task in range(TASKS)]
    tasks = [of.task(f"{a}/{b}", x[(y == a) | (y == b)], y[(y == a) | (y == b)] - a, (a, b)) for a, b in groups]
    return Course(tasks, partial(mlp, 64, 64, 2 * TASKS), Categorical())


def _digits_permuted(of: _Division, largest: float = 1.0) -> Course:
    return Course(of.permuted(*_digits(largest)), partial(mlp, 64, 64, 10), Categorical())


def _blobs(of: _Division) -> Course:
    parts = [Blobs(TOY_VARIATIONS["toy-less-data"], of.seed).task(index).train for index in range(TASKS)]
    tasks = [of.task(f"blobs {index}", *tensors(part)) for index, part in enumerate(parts)]
    return Course(tasks, partial(mlp, 2, 20, 2), Categorical())


def _tumours(of: _Division, raw: bool = False) -> Course:
    data = datasets.load_breast_cancer()
    x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    return Course(of.permuted(x if raw else _standardised(x), y), partial(mlp, x.shape[1], 32, 2), Categorical())


def _progression(of: _Division) -> Course:
    data = datasets.load_diabetes()
    x, y = (torch.tensor(part, dtype=torch.float32) for part in (data.data, data.target[:, None]))
    # Half of the variance of the standardised target is about what a model explains of it.
    return Course(of.permuted(_standardised(x), _standardised(y)), partial(mlp, x.shape[1], 32, 1), Gaussian(2.0))


def _opinions(of: _Division, words: int = 600, each: int = 900) -> Course:
    """Counts of the most frequent words in sentences about films, goods and everyday life: a good or a bad opinion."""
    kinds = []
    for kind in KINDS:
        rows = sentences(kind)
        kinds.append([row for y in (0, 1) for row in [row for row in rows if row[1] == y][:each]])
    counter = CountVectorizer(max_features=words).fit([text for rows in kinds for text, _ in rows])
    tasks = []
    for kind, rows in zip(KINDS, kinds, strict=True):
        x = torch.tensor(counter.transform([text for text, _ in rows]).toarray(), dtype=torch.float32)
        tasks.append(of.task(kind, x, torch.tensor([y for _, y in rows])))
    return Course(tasks, partial(mlp, words, 32, 2), Categorical())


STREAMS: dict[str, Callable[[_Division], Course]] = {
    "digits, heads": _digits_split,
    "digits, permuted": _digits_permuted,
    "the same, 0 to 255": partial(_digits_permuted, largest=255.0),
    "blobs": _blobs,
    "tumours": _tumours,
    "the same, raw": partial(_tumours, raw=True),
    "opinions": _opinions,
    "diabetes": _progression,
}


def _digits(largest: float) -> tuple[Tensor, Tensor]:
    data = datasets.load_digits()
    return torch.tensor(data.data, dtype=torch.float32) * (largest / 16), torch.tensor(data.target)


def _standardised(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / x.std(0)


def _outputs(model: nn.Module, x: Tensor, task: Task) -> Tensor:
    f = model(x)
    return f if task.head is None else f[:, list(task.head)]
