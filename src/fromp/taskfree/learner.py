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
from fromp.foundation.state import State, field, moments, restore_moments, tensor, whole
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
        saved, kind = field(state, "model", dict), field(state, "learner", dict)
        shapes, own = ({n: [*tensor(of, n).shape] for n in of} for of in (saved, self.model.state_dict()))
        same = {name: (kind.get(name), mine) for name, mine in self._kind().items()}
        same |= {f"the model's {name} of shape": (shapes.get(name), own.get(name)) for name in {**own, **shapes}}
        for name, (then, mine) in same.items():
            if then != mine:
                raise CheckpointError(
                    f"{os.fspath(path)} was saved with {name} {then}, this learner has {mine}; make it the same."
                )
        weights = whole(state, "model", self.model.state_dict())
        learner = self._checked(kind)
        self.regulariser.load_state_dict(field(state, "regulariser", dict))  # before the model, because it may raise
        self.model.load_state_dict(weights)
        self._become(learner)

    def state_dict(self) -> State:
        """Everything but the model and the regulariser."""
        return {
            "boundaries": self.boundaries, "seen": self._seen, "age": self._age, "held": self._held,
            "reservoir": self.reservoir.state_dict(), "past": self._past.state_dict(),
            "optimizer": moments(self.optimizer), "detector": self.detector.state_dict(), **self._kind(),
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Return to a state that `state_dict` gave; if it is not sound, the error comes before anything is changed."""
        self._become(self._checked(state))

    def _checked(self, state: State) -> State:
        """The same state, if every part of it is what this learner would have saved."""
        seen, age, device = field(state, "seen", int), field(state, "age", int), device_of(self.model)
        boundaries = [_whole_numbers(found, 2) for found in field(state, "boundaries", list)]
        if not 0 <= age <= seen or any(not 0 <= begins <= noticed <= seen for begins, noticed in boundaries):
            raise CheckpointError(
                f"the saved boundaries are not those of {seen} minibatches; restore them from a copy."
            )
        reservoir = Reservoir(self.reservoir.capacity, self.reservoir.seed)
        reservoir.load_state_dict(field(state, "reservoir", dict))
        detector, optimizer = copy.copy(self.detector), copy.deepcopy(self.optimizer)
        detector.begin_task()
        detector.load_state_dict(field(state, "detector", dict))
        restore_moments(optimizer, field(state, "optimizer", dict))
        return {
            **state,
            "boundaries": boundaries,
            "past": whole(state, "past", self._past.state_dict()),
            "held": [_batch(held, device) for held in field(state, "held", list)],
        }

    def _become(self, state: State) -> None:
        self.boundaries = [Boundary(*found) for found in state["boundaries"]]
        self._seen, self._age = state["seen"], state["age"]
        self.reservoir.load_state_dict(state["reservoir"])
        self._past.load_state_dict(state["past"])
        restore_moments(self.optimizer, state["optimizer"])
        self.detector.load_state_dict(state["detector"])
        self._held, self._first = state["held"], None

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


def _whole_numbers(found: Any, count: int) -> list[int]:
    """So many whole numbers in a list."""
    if not isinstance(found, list | tuple) or len(found) != count or any(type(n) is not int for n in found):
        raise CheckpointError(f"{found} in the saved state is not {count} whole numbers; restore it from a copy.")
    return [*found]


def _batch(found: Any, device: torch.device) -> Batch:
    """A saved minibatch on a device, if it is one."""
    if not isinstance(found, list | tuple) or len(found) != 2:
        raise CheckpointError("a saved minibatch is not inputs and labels; restore it from a copy.")
    x, y = found[0], tensor({"labels": found[1]}, "labels")
    if not isinstance(x, Tensor | list | tuple | dict) or not y.ndim or inputs.num_examples(x) != len(y):
        raise CheckpointError("a saved minibatch has not one label for each input; restore it from a copy.")
    inputs.check_finite(x)
    return inputs.move(x, device), y.to(device)
