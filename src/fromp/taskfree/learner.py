"""Learning from minibatches alone: task boundaries are not given, and no data is kept but a small sample."""

import copy
import os
from collections.abc import Iterator
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from fromp.derivatives.model import device_of, outputs, trains_as_it_predicts
from fromp.foundation import inputs, storage
from fromp.foundation.errors import CheckpointError, FrompError
from fromp.foundation.examples import Batch
from fromp.foundation.inputs import Inputs
from fromp.foundation.state import State, moments, restore_moments
from fromp.protocol import Loss, Regulariser
from fromp.taskfree.detectors import Calibrated, Detector, Verdict
from fromp.taskfree.evidence import Evidence
from fromp.taskfree.reservoir import Reservoir


class Boundary(NamedTuple):
    """Two minibatches, counted from 0: the first of a new task, and the one at which this was decided."""

    begins: int
    noticed: int


@final
class TaskFree:
    """Trains a model on minibatches as they come, detects where a task ends, and remembers it then.

        learner = TaskFree(FROMP(model, Categorical(), tau=0.5, memory_size=200), optimizer)
        for x, y in stream:
            learner.observe(x, y)

    One head for all tasks: labels count over all of the model's outputs.

    optimizer: its state is cleared at the start of each task, as in the paper.
    detector: `Calibrated()`, `Calibrated.on_divergence()`, or `Welch(threshold)` for the paper's.
    reservoir: distinct examples of the present task that are kept, to remember it by when it ends.
    min_task_examples: distinct examples that a task has at least; no change is looked for before, nor in its first ten
        minibatches.
    clip: of the norm of the gradient.
    seed: of the choice of examples.
    """

    UNTESTED_MINIBATCHES = 10  # minibatches of a task that are not tested, as in the paper

    def __init__(
        self,
        regulariser: Regulariser,
        optimizer: torch.optim.Optimizer,
        detector: Detector | None = None,
        *,
        reservoir: int = 5000,
        min_task_examples: int = 500,
        clip: float | None = None,
        seed: int = 0,
    ) -> None:
        if reservoir < min_task_examples:
            raise FrompError(
                f"reservoir={reservoir} is smaller than min_task_examples={min_task_examples}; "
                "enlarge it, or lower `min_task_examples`."
            )
        if (memory := getattr(regulariser, "memory_size", 0)) > min_task_examples:
            raise FrompError(
                f"memory_size={memory} is larger than min_task_examples={min_task_examples}; "
                "enlarge `min_task_examples`, and the reservoir with it, or lower memory_size."
            )
        if hasattr(regulariser, "begin_task"):
            raise FrompError(
                f"{type(regulariser).__name__} needs to know when a task begins; use a regulariser that does not, "
                "such as FROMP."
            )
        if not isinstance(regulariser, Regulariser):
            raise FrompError(
                f"{type(regulariser).__name__} is not a regulariser: it lacks penalty, end_task, state_dict or "
                "load_state_dict; give one that is only a penalty, such as FROMP."
            )
        self.regulariser, self.optimizer, self.clip = regulariser, optimizer, clip
        self.min_task_examples = min_task_examples
        self.detector = Calibrated() if detector is None else detector
        self.reservoir = Reservoir(reservoir, seed)
        self.boundaries: list[Boundary] = []
        self.verdict = Verdict.SAME  # the last minibatch's
        self.loss = Loss(torch.zeros(()), torch.zeros(()))  # loss of the last step
        self._seen, self._age = 0, 0  # minibatches in all, and in the current task
        self._held: list[Batch] = []
        self._past = copy.deepcopy(regulariser.model).eval().requires_grad_(False)
        self._shared: bool | None = None  # whether one forward pass serves both detection and training
        self._first: Tensor | None = None  # nll of the first minibatch held back, valid while the weights stay

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self.regulariser.model

    def observe(self, x: Inputs, y: Tensor) -> Verdict:
        """Learn from a minibatch, or hold it back until it is clear which task it belongs to."""
        if self._shared is None:
            self._shared = trains_as_it_predicts(self.model, x)
        f = None
        if self._shared:
            # The graph of the first minibatch held back outlives this call, the caller's tensors may not.
            x, y = (x, y) if self._held else (inputs.transform(torch.clone, x), y.clone())
            with torch.set_grad_enabled(not self._held):
                f = outputs(self.model, x)
        for batch in self._admit(x, y, f):
            self._descend(batch)
        return self.verdict

    def admit(self, x: Inputs, y: Tensor, f: Tensor | None = None) -> Iterator[Batch]:
        """The same for your own loop: yields the minibatches to train on now, none while the verdict is UNSURE.

        Go through all of them before the next call: a task that has ended is remembered between two of them.

        f: the outputs of the model at x, if they are known; this saves computing some of them.
        """
        return self._admit(x, y, None if f is None else f.detach())

    def _admit(self, x: Inputs, y: Tensor, f: Tensor | None) -> Iterator[Batch]:
        self.verdict = self._examine(x, y, f)
        if self.verdict is Verdict.UNSURE:  # the caller may fill the same tensors with the next minibatch
            x, y = inputs.transform(torch.clone, x), y.clone()
        self._held.append((x, y))
        self._seen += 1
        if self.verdict is Verdict.NEW:
            fresh = self.detector.fresh
            yield from self._accept(len(self._held) - fresh)
            self._remember(Boundary(self._seen - fresh, self._seen - 1))
        if self.verdict is not Verdict.UNSURE:
            yield from self._accept(len(self._held))

    def release(self) -> Iterator[Batch]:
        """The minibatches still held back, to train on: for your own loop, when a stream ends or before `end_task`."""
        return self._accept(len(self._held))

    def end_task(self) -> None:
        """Train on the minibatches held back, and remember the task: at a known boundary, or at the stream's end."""
        for batch in self.release():
            self._descend(batch)
        self._remember(Boundary(self._seen, self._seen))

    def save(self, path: str | os.PathLike) -> None:
        """Write everything, the model's weights included, into a folder, atomically."""
        model, regulariser = self.model.state_dict(), self.regulariser.state_dict()
        storage.write(path, "task-free", {"model": model, "regulariser": regulariser, "learner": self.state_dict()})

    def load(self, path: str | os.PathLike) -> None:
        """Continue from what `save` wrote, with the same kind of model, regulariser, optimizer and detector."""
        state = storage.read(path, "task-free")
        shapes, own = ({n: [*w.shape] for n, w in of.items()} for of in (state["model"], self.model.state_dict()))
        same = {name: (state["learner"].get(name), mine) for name, mine in self._kind().items()}
        same |= {f"the model's {name} of shape": (shapes.get(name), own.get(name)) for name in {**own, **shapes}}
        for name, (saved, mine) in same.items():
            if saved != mine:
                raise CheckpointError(
                    f"{os.fspath(path)} was saved with {name} {saved}, this learner has {mine}; make it the same."
                )
        self.regulariser.load_state_dict(state["regulariser"])  # first, because it may raise
        self.model.load_state_dict(state["model"])
        self.load_state_dict(state["learner"])

    def state_dict(self) -> State:
        """Everything but the model and the regulariser."""
        return {
            "boundaries": self.boundaries, "seen": self._seen, "age": self._age, "held": self._held,
            "reservoir": self.reservoir.state_dict(), "past": self._past.state_dict(),
            "optimizer": moments(self.optimizer), "detector": self.detector.state_dict(), **self._kind(),
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Return to a state that `state_dict` gave."""
        self.boundaries = [Boundary(*found) for found in state["boundaries"]]
        self._seen, self._age = state["seen"], state["age"]
        self.reservoir.load_state_dict(state["reservoir"])
        self._past.load_state_dict(state["past"])
        restore_moments(self.optimizer, state["optimizer"])
        self.detector.load_state_dict(state["detector"])
        device = device_of(self.model)
        self._held, self._first = [(inputs.move(x, device), y.to(device)) for x, y in state["held"]], None

    def _kind(self) -> dict[str, Any]:
        """What must be the same where a saved state is loaded."""
        kinds = {"regulariser": self.regulariser, "optimiser": self.optimizer, "detector": self.detector}
        return {
            **{f"{name}'s kind": type(thing).__name__ for name, thing in kinds.items()},
            "detector's values": list(self.detector.names),
            "reservoir's size": self.reservoir.capacity, "reservoir's seed": self.reservoir.seed,
        }  # fmt: skip

    def _examine(self, x: Inputs, y: Tensor, f: Tensor | None) -> Verdict:
        likelihood, examples = self.regulariser.likelihood, self.detector.examples
        armed = self._age >= self.UNTESTED_MINIBATCHES and self.reservoir.distinct >= self.min_task_examples
        evidence = Evidence(self.model, self._past, likelihood, x, y, examples, f, self._held, self._sample)
        if not self._held:
            self._first = evidence.nll if f is not None and f.requires_grad else None
        return self.detector.examine(evidence, armed)

    def _sample(self) -> Batch:
        """Examples of the current task."""
        sample = self.reservoir.sample()
        return sample.x, sample.y

    def _accept(self, count: int) -> Iterator[Batch]:
        """The first `count` of the minibatches held back, which belong to the current task."""
        for _ in range(count):
            x, y = self._held.pop(0)
            self.reservoir.add(x, y)
            self._age += 1
            yield x, y

    def _remember(self, boundary: Boundary) -> None:
        self.regulariser.end_task(self.reservoir.sample())
        self._past.load_state_dict(self.model.state_dict())
        self.optimizer.state.clear()
        self.detector.begin_task()
        self.reservoir.clear()
        self._age = 0
        self.boundaries.append(boundary)

    def _descend(self, batch: Batch) -> None:
        nll, self._first = self._first, None
        if nll is None:
            x, y = batch
            nll = self.regulariser.likelihood.nll(outputs(self.model, x), y)
        loss = Loss(nll.mean(), self.regulariser.penalty())
        loss.descend(self.optimizer, self.clip)
        self.loss = loss.detach()
