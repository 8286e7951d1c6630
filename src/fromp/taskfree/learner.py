"""Learning from minibatches alone: nobody says where a task begins, and no data is kept but a small sample."""

import copy
import os
from collections.abc import Iterator
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Weights, device_of, evaluating, outputs
from fromp.foundation import inputs, storage
from fromp.foundation.errors import CheckpointError, FrompError
from fromp.foundation.examples import Batch
from fromp.foundation.inputs import Inputs
from fromp.lab.engine.fit import Fit, Training, moments, restore_moments, step
from fromp.lab.methods.base import HeadBatch, Loss, Method, TrainingSets, under
from fromp.taskfree.detectors import Calibrated, Detector, Evidence, Verdict
from fromp.taskfree.reservoir import Reservoir


class Boundary(NamedTuple):
    """Two minibatches, counted from 0: the first of a new task, and the one at which this was decided."""

    begins: int
    noticed: int


@final
class TaskFree:
    """Trains a method on minibatches as they come, finds out by itself where a task ends, and remembers it then.

        learner = TaskFree(FROMP(model, Categorical(), tau=0.5, memory_size=200), optimizer)
        for x, y in stream:
            learner.observe(x, y)

    One head for all tasks: labels count over all of the model's outputs.

    optimizer: its state starts anew with each task, as in the paper.
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
        method: Method,
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
        if (memory := getattr(method, "memory_size", 0)) > min_task_examples:
            raise FrompError(
                f"memory_size={memory} is larger than min_task_examples={min_task_examples}; "
                "enlarge `min_task_examples`, and the reservoir with it, or lower memory_size."
            )
        if type(method).begin_task is not Method.begin_task:
            raise FrompError(
                f"{type(method).__name__} must be told when a task begins; use a method that need not, such as FROMP."
            )
        self.method, self.optimizer, self.clip, self.min_task_examples = method, optimizer, clip, min_task_examples
        self.detector = Calibrated() if detector is None else detector
        self.reservoir = Reservoir(reservoir, seed)
        self.boundaries: list[Boundary] = []
        self.verdict = Verdict.SAME  # on the last minibatch
        self.loss = Loss(torch.zeros(()), torch.zeros(()))  # of the last step
        self._seen, self._age = 0, 0  # minibatches in all, and of the present task
        self._held: list[Batch] = []
        self._past = copy.deepcopy(method.model).eval().requires_grad_(False)
        self._shared: bool | None = None  # whether one pass serves to look and to learn, once it is known
        self._first: Tensor | None = None  # nll of the first minibatch held back: the weights are still those

    @property
    def model(self) -> nn.Module:
        """What learns."""
        return self.method.model

    def observe(self, x: Inputs, y: Tensor) -> Verdict:
        """Learn from a minibatch, or hold it back until it is clear which task it belongs to."""
        if self._shared is None:
            self._shared = self._one_pass(x)
        f = None
        if self._shared:
            # The graph of the first minibatch of a doubt outlives this call, the caller's tensors may not.
            x, y = (x, y) if self._held else (inputs.transform(torch.clone, x), y.clone())
            with torch.set_grad_enabled(not self._held):
                f = outputs(self.model, x)
        for batch in self._admit(x, y, f):
            self._descend(batch)
        return self.verdict

    def admit(self, x: Inputs, y: Tensor, f: Tensor | None = None) -> Iterator[Batch]:
        """The same for a loop of one's own: yields the minibatches to train on now, none while it is unsure.

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
        """What is still held back, to train on: for a loop of one's own, when a stream ends or before `end_task`."""
        return self._accept(len(self._held))

    def end_task(self) -> None:
        """Learn from what is held back, and remember the task: for a boundary that is known, or the stream's end."""
        for batch in self.release():
            self._descend(batch)
        self._remember(Boundary(self._seen, self._seen))

    def save(self, path: str | os.PathLike) -> None:
        """Write everything, the model's weights included, into a folder, atomically."""
        of_method, method = self.method.state()
        tensors, state = self.state()
        tensors |= {f"method.{name}": value for name, value in of_method.items()}
        tensors |= {f"model.{name}": value for name, value in self.model.state_dict().items()}
        storage.write(path, "task-free", tensors, {**state, "method": method})

    def load(self, path: str | os.PathLike) -> None:
        """Go on from what `save` wrote, with the same kind of model, method, optimiser and detector."""
        tensors, state = storage.read(path, "task-free")
        weights = under(tensors, "model.")
        shapes, own = ({n: [*w.shape] for n, w in of.items()} for of in (weights, self.model.state_dict()))
        same = {name: (state.get(name), mine) for name, mine in self._kind().items()}
        same |= {f"the model's {name} of shape": (shapes.get(name), own.get(name)) for name in {**own, **shapes}}
        for name, (saved, mine) in same.items():
            if saved != mine:
                raise CheckpointError(
                    f"{os.fspath(path)} was saved with {name} {saved}, this learner has {mine}; make it the same."
                )
        self.method.restore(under(tensors, "method."), state["method"])  # the first, since it may still refuse
        self.model.load_state_dict(weights)
        self.restore(tensors, state)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything but the model and the method, as tensors and as JSON values; `restore` takes it back."""
        of_reservoir, reservoir = self.reservoir.state()
        tensors = {f"reservoir.{name}": value for name, value in of_reservoir.items()}
        tensors |= {f"past.{name}": value for name, value in self._past.state_dict().items()}
        tensors |= {f"optimizer.{name}": value for name, value in moments(self.optimizer).items()}
        for place, (x, y) in enumerate(self._held):
            tensors |= {f"held.{place}.input.{k}": part for k, part in enumerate(inputs.tensors(x))}
            tensors[f"held.{place}.labels"] = y
        return tensors, {
            "boundaries": self.boundaries, "seen": self._seen, "age": self._age, "reservoir": reservoir,
            "held": [inputs.structure(x) for x, _ in self._held], "detector": self.detector.state(), **self._kind(),
        }  # fmt: skip

    def _kind(self) -> dict[str, Any]:
        """What must be the same where a saved state is loaded."""
        kinds = {"method": self.method, "optimiser": self.optimizer, "detector": self.detector}
        return {
            **{f"{name}'s kind": type(thing).__name__ for name, thing in kinds.items()},
            "detector's values": list(self.detector.names),
            "reservoir's size": self.reservoir.capacity, "reservoir's seed": self.reservoir.seed,
        }  # fmt: skip

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Return to a state that `state` gave."""
        self.boundaries = [Boundary(*found) for found in state["boundaries"]]
        self._seen, self._age = state["seen"], state["age"]
        self.reservoir.restore(under(tensors, "reservoir."), state["reservoir"])
        self._past.load_state_dict(under(tensors, "past."))
        restore_moments(self.optimizer, under(tensors, "optimizer."))
        self.detector.restore(state["detector"])
        self._held, self._first, device = [], None, device_of(self.model)
        for place, structure in enumerate(state["held"]):
            own = {name: part.to(device) for name, part in under(tensors, f"held.{place}.").items()}
            parts = iter([own[f"input.{k}"] for k in range(len(own) - 1)])
            self._held.append((inputs.assemble(structure, parts), own["labels"]))

    def _examine(self, x: Inputs, y: Tensor, f: Tensor | None) -> Verdict:
        likelihood, examples = self.method.likelihood, self.detector.examples
        armed = self._age >= self.UNTESTED_MINIBATCHES and self.reservoir.distinct >= self.min_task_examples
        evidence = Evidence(
            self.model, self._past, likelihood, x, y, examples, f, self._precision, self._held, self._sample
        )
        if not self._held:
            self._first = evidence.nll if f is not None and f.requires_grad else None
        return self.detector.examine(evidence, armed)

    def _one_pass(self, x: Inputs) -> bool:
        """Whether the pass that learns can serve to look: it must give what evaluation does, and leave nothing behind.

        With dropout it gives something else, and with batch norm it writes on buffers, also for minibatches in doubt.
        A method may have a loss of its own.
        """
        model, method = self.model, type(self.method)
        plain = (method.loss, method.data_loss) == (Method.loss, Method.data_loss)
        if not plain or next(model.buffers(), None) is not None:
            return False
        with torch.random.fork_rng([]), torch.no_grad():
            state = torch.get_rng_state()
            learning = outputs(model, x)
            if not torch.equal(state, torch.get_rng_state()):
                return False
            with evaluating(model):
                return torch.equal(learning, outputs(model, x))

    def _sample(self) -> Batch:
        """Some of the present task."""
        sample = self.reservoir.sample()
        return sample.x, sample.y

    def _precision(self) -> Weights:
        """Of the weights, as the past tasks left it."""
        try:
            known, prior = self.method.precision, self.method.prior_precision  # type: ignore[attr-defined]
        except AttributeError as error:
            raise FrompError(
                f"{type(self.method).__name__} keeps no precision of the weights, which a divergence is made of; "
                "use FROMP, or another detector."
            ) from error
        weights = {name: w.detach() for name, w in self.model.named_parameters() if w.requires_grad}
        return {name: known.get(name, torch.full_like(w, prior)) for name, w in weights.items()}

    def _accept(self, count: int) -> Iterator[Batch]:
        """The first few of those held back belong to the present task."""
        for _ in range(count):
            x, y = self._held.pop(0)
            self.reservoir.add(x, y)
            self._age += 1
            yield x, y

    def _remember(self, boundary: Boundary) -> None:
        self.method.end_task(self.reservoir.sample())
        self._past.load_state_dict(self.model.state_dict())
        self.optimizer.state.clear()
        self.detector.begin_task()
        self.reservoir.clear()
        self._age = 0
        self.boundaries.append(boundary)

    def _descend(self, batch: Batch) -> None:
        nll, self._first = self._first, None
        loss = self.method.loss([(*batch, None)]) if nll is None else Loss(nll.mean(), self.method.penalty())
        self.loss, _ = step(self.method, self.optimizer, loss, self.clip)


@final
class TaskFreeFit(Fit):
    """A task's minibatches, shown to a learner that is not told of it."""

    def __init__(self, learner: TaskFree, training: TrainingSets, settings: Training, seed: int) -> None:
        super().__init__(learner.method, training, settings, seed, learner.optimizer)
        self._learner = learner

    def learn(self, batch: list[HeadBatch]) -> Loss:
        x, y, head = batch[0]
        if head is not None:
            raise FrompError(
                f"the head {list(head)} says which task an example belongs to; "
                "choose a benchmark with one head for all tasks, such as permuted-mnist."
            )
        self._learner.observe(x, y)
        return self._learner.loss

    def state(self) -> dict[str, Tensor]:
        return {}  # the learner keeps it

    def restore(self, step: int, tensors: dict[str, Tensor]) -> None:
        self.step = step
