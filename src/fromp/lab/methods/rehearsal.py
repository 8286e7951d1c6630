"""Regularisers that keep random examples: replay, DER++ and functional L2, Eq. (1)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Head, as_head, device_of, evaluating, outputs
from fromp.foundation import inputs
from fromp.foundation.errors import CheckpointError
from fromp.foundation.examples import TaskData, as_examples
from fromp.foundation.inputs import Inputs
from fromp.foundation.state import State, field, set_generator, tensor
from fromp.lab.methods.base import HeadBatch, Penalised, by_set, mean_nll, outputs_of_heads
from fromp.lab.methods.card import CLASSES, DOMAIN, UNCLIPPED, MethodCard, register
from fromp.lab.settings import AtLeastOne, NotNegative, settings
from fromp.likelihoods import Likelihood
from fromp.memory import Memory, assess, random_score, remember
from fromp.protocol import no_penalty


class Rehearsal(ABC):
    """Keeps random examples of each task, as many of each class."""

    def __init__(self, model: nn.Module, likelihood: Likelihood, memory: int, seed: int) -> None:
        self.model, self.likelihood, self.memory_size = model, likelihood, memory
        self.memories: list[Memory] = []
        self._generator = torch.Generator().manual_seed(seed)

    @abstractmethod
    def penalty(self) -> Tensor:
        """What is added to the mean nll: a scalar, zero before the first task has ended."""

    def end_task(self, data: TaskData, head: Sequence[int] | None = None) -> None:
        """Keep random examples of the task."""
        examples, head = as_examples(data), as_head(head)
        generator = torch.Generator()
        generator.set_state(self._generator.get_state())
        scores, classes = assess(self.model, examples, self.likelihood, generator, head, random_score)
        self.memories.append(remember(examples, scores, classes, self.memory_size, head))
        self._generator = generator

    def draw(self, size: int, beside: Sequence[Tensor]) -> list[tuple[HeadBatch, Tensor]]:
        """`size` examples of all past tasks, one part per head, with their rows of `beside`, one tensor per memory."""
        sizes = [len(memory) for memory in self.memories]
        chosen = torch.randint(sum(sizes), (size,), generator=self._generator)
        by_head: dict[Head, list[tuple[Inputs, Tensor, Tensor]]] = {}
        for memory, f, own in zip(self.memories, beside, by_set(chosen, sizes), strict=True):
            if len(own):
                own = own.to(f.device)
                x, y = inputs.take(memory.inputs, own), memory.labels[own]
                by_head.setdefault(memory.head, []).append((x, y, f[own]))
        return [_joined(head, pieces) for head, pieces in by_head.items()]

    def labelled(self, size: int) -> Tensor:
        """The mean nll of `size` examples of all the past."""
        parts = [part for part, _ in self.draw(size, [memory.labels for memory in self.memories])]
        return mean_nll(self.model, self.likelihood, parts)

    def state_dict(self) -> State:
        """The examples, and the draws."""
        memories = [memory.state_dict() for memory in self.memories]
        return {"memories": memories, "generator": self._generator.get_state()}

    def load_state_dict(self, state: State) -> None:
        """Return to the examples and draws that `state_dict` gave."""
        device = device_of(self.model)
        memories = [Memory.from_state(memory, device) for memory in field(state, "memories", list)]
        set_generator(self._generator, state, "generator")
        self.memories = memories


class WithOutputs(Rehearsal):
    """Keeps the outputs of the model at its examples too."""

    def __init__(self, model: nn.Module, likelihood: Likelihood, memory: int, seed: int) -> None:
        super().__init__(model, likelihood, memory, seed)
        self.outputs: list[Tensor] = []  # the model's outputs at each memory

    def outputs_at(self, memories: Sequence[Memory]) -> list[Tensor]:
        """The current outputs at some memories."""
        with evaluating(self.model), torch.no_grad():
            return [outputs(self.model, memory.inputs, memory.head) for memory in memories]

    def state_dict(self) -> State:
        return {**super().state_dict(), "outputs": list(self.outputs)}

    def load_state_dict(self, state: State) -> None:
        memories, found = field(state, "memories", list), dict(enumerate(field(state, "outputs", list)))
        if len(found) != len(memories):
            raise CheckpointError(f"{len(memories)} memories were saved with {len(found)} outputs; restore a copy.")
        super().load_state_dict(state)
        outputs = {str(s): f for s, f in found.items()}
        self.outputs = [
            tensor(outputs, str(s), len(memory), -1, floating=True).to(device_of(self.model))
            for s, memory in enumerate(self.memories)
        ]


@final
class Replay(Rehearsal):
    """strength times the mean nll of a minibatch drawn from the labelled examples of all past tasks."""

    def __init__(
        self, model: nn.Module, likelihood: Likelihood, memory: int, batch_size: int, strength: float, seed: int
    ) -> None:
        super().__init__(model, likelihood, memory, seed)
        self.batch_size, self.strength = batch_size, strength

    def penalty(self) -> Tensor:
        if not self.memories:
            return no_penalty(self.model)
        with evaluating(self.model):
            return self.strength * self.labelled(self.batch_size)


@final
class DERpp(WithOutputs):
    """logit_strength mean (f - f_s)^2 + strength mean nll, each of a draw of its own (DER++, Buzzega et al. 2020)."""

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        memory: int,
        batch_size: int,
        strength: float,
        logit_strength: float,
        seed: int,
    ) -> None:
        super().__init__(model, likelihood, memory, seed)
        self.batch_size, self.strength, self.logit_strength = batch_size, strength, logit_strength

    def penalty(self) -> Tensor:
        if not self.memories:
            return no_penalty(self.model)
        with evaluating(self.model):
            parts, stored = zip(*self.draw(self.batch_size, self.outputs), strict=True)
            distances = [
                (f - then).square().mean() * (len(then) / self.batch_size)
                for f, then in zip(outputs_of_heads(self.model, parts), stored, strict=True)
            ]
            labelled = self.labelled(self.batch_size)
        return self.logit_strength * torch.stack(distances).sum() + self.strength * labelled

    def end_task(self, data: TaskData, head: Sequence[int] | None = None) -> None:
        super().end_task(data, head)
        self.outputs += self.outputs_at(self.memories[-1:])


@final
class FunctionalL2(WithOutputs):
    """strength sum_s |f_(t,s) - f_(t-1,s)|^2, Eq. (1) divided by N, on a random working memory (Benjamin et al. 2018).

    f are the outputs themselves, not the means that they stand for. They are held where they were at the last task's
    end, on the examples of every task.
    """

    def __init__(self, model: nn.Module, likelihood: Likelihood, memory: int, strength: float, seed: int) -> None:
        super().__init__(model, likelihood, memory, seed)
        self.strength = strength

    def penalty(self) -> Tensor:
        if not self.memories:
            return no_penalty(self.model)
        with evaluating(self.model):
            distances = [
                (outputs(self.model, memory.inputs, memory.head) - before).square().sum()
                for memory, before in zip(self.memories, self.outputs, strict=True)
            ]
        return self.strength * torch.stack(distances).sum()

    def end_task(self, data: TaskData, head: Sequence[int] | None = None) -> None:
        super().end_task(data, head)
        self.outputs = self.outputs_at(self.memories)


def _joined(head: Head, pieces: Sequence[tuple[Inputs, Tensor, Tensor]]) -> tuple[HeadBatch, Tensor]:
    x, y, f = (list(column) for column in zip(*pieces, strict=True))
    return (inputs.concatenate(x), torch.cat(y), head), torch.cat(f)


@settings
class FunctionalL2Settings:
    """What functional L2 regularisation is built with."""

    memory: AtLeastOne
    """Points kept of each task."""
    strength: NotNegative = 1.0
    """Weight of the penalty beside the mean loss."""


@settings
class ReplaySettings:
    """What replay is built with."""

    memory: AtLeastOne
    """Examples kept of each task."""
    strength: NotNegative = 1.0
    """Weight of the replayed minibatch beside the new one."""


@settings
class DERppSettings(ReplaySettings):
    """What DER++ is built with."""

    logit_strength: NotNegative = 0.5
    """Weight of the distance to the stored outputs."""


register(
    MethodCard(
        name="functional-l2",
        colour=10,
        title="functional L2",
        paper="Benjamin et al. 2018",
        keeps="random points and their outputs",
        step_cost="one pass over all memory",
        settings=FunctionalL2Settings,
        build=lambda model, likelihood, s, seed: Penalised(FunctionalL2(model, likelihood, s.memory, s.strength, seed)),
        random_memory=True,
        presets={
            **UNCLIPPED,
            "toy": {"strength": 1e-3},
            "split-mnist": {"lr": 1e-3, "strength": 0.01},
            "split-mnist-domain": {**DOMAIN, "strength": 3e-4},
            "split-mnist-class": {**CLASSES, "strength": 3e-4},
            "permuted-mnist": {"strength": 1e-3},
        },
    )
)
register(
    MethodCard(
        name="replay",
        colour=11,
        title="replay",
        paper="the first thing to try",
        keeps="random points with their labels",
        step_cost="a second minibatch",
        settings=ReplaySettings,
        build=lambda model, likelihood, s, seed: Penalised(
            Replay(model, likelihood, s.memory, s.batch_size, s.strength, seed)
        ),
        random_memory=True,
        presets={
            **UNCLIPPED,
            "toy": {"strength": 1.0},
            "split-mnist": {"lr": 3e-5, "strength": 1e-5},
            "permuted-mnist": {"strength": 100.0},
        },
    )
)
register(
    MethodCard(
        name="der++",
        colour=12,
        title="DER++",
        paper="Buzzega et al. 2020",
        keeps="random points with their labels and outputs",
        step_cost="two more minibatches",
        settings=DERppSettings,
        build=lambda model, likelihood, s, seed: Penalised(
            DERpp(model, likelihood, s.memory, s.batch_size, s.strength, s.logit_strength, seed)
        ),
        random_memory=True,
        presets={
            **UNCLIPPED,
            "toy": {"strength": 0.5, "logit_strength": 0.1},
            "split-mnist": {"strength": 0.5, "logit_strength": 0.5},
            "split-mnist-domain": {**DOMAIN, "strength": 10.0, "logit_strength": 0.1},
            "split-mnist-class": {**CLASSES, "strength": 10.0, "logit_strength": 0.5},
            "permuted-mnist": {"strength": 0.5, "logit_strength": 3.0},
        },
    )
)
