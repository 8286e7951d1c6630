"""Rehearsal of stored examples: what one would try first."""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Head, as_head, evaluating, outputs
from fromp.foundation import inputs
from fromp.foundation.examples import as_examples
from fromp.foundation.inputs import Inputs
from fromp.lab.methods.base import HeadBatch, Method, by_set, outputs_of_parts, under
from fromp.likelihoods import Likelihood
from fromp.memory import Memory, assess, pack, random_score, remember, unpack


class Rehearsal(Method):
    """Keeps random examples of each task, as many of each class."""

    def __init__(self, model: nn.Module, likelihood: Likelihood, memory: int, seed: int) -> None:
        super().__init__(model, likelihood)
        self.memory_size = memory
        self._generator = torch.Generator().manual_seed(seed)

    def end_task(self, data: Any, head: Sequence[int] | None = None) -> None:
        examples, head = as_examples(data), as_head(head)
        generator = torch.Generator()
        generator.set_state(self._generator.get_state())
        scores, classes = assess(self.model, examples, self.likelihood, generator, head, random_score)
        self.memories.append(remember(examples, scores, classes, self.memory_size, head))
        self._generator = generator

    def draw(self, size: int, beside: Sequence[Tensor]) -> list[tuple[HeadBatch, Tensor]]:
        """`size` examples of all the past, in one part a head, with what stands beside each: a tensor a memory."""
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
        return self.data_loss([part for part, _ in self.draw(size, [memory.labels for memory in self.memories])])

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, memories = pack(self.memories)
        return {**tensors, "generator": self._generator.get_state()}, {"memories": memories}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        self.memories: list[Memory] = unpack(self.here(tensors), state["memories"])
        self._generator.set_state(tensors["generator"])


class WithOutputs(Rehearsal):
    """Keeps the outputs of the model at its examples too."""

    def __init__(self, model: nn.Module, likelihood: Likelihood, memory: int, seed: int) -> None:
        super().__init__(model, likelihood, memory, seed)
        self.outputs: list[Tensor] = []  # of each memory

    def outputs_at(self, memories: Sequence[Memory]) -> list[Tensor]:
        """The present outputs at some memories."""
        with evaluating(self.model), torch.no_grad():
            return [outputs(self.model, memory.inputs, memory.head) for memory in memories]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, state = super().state()
        return tensors | {f"outputs.{s}": f for s, f in enumerate(self.outputs)}, state

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        super().restore(tensors, state)
        found = under(self.here(tensors), "outputs.")
        self.outputs = [found[str(s)] for s in range(len(found))]


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
            return super().penalty()
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
            return super().penalty()
        with evaluating(self.model):
            parts, stored = zip(*self.draw(self.batch_size, self.outputs), strict=True)
            distances = [
                (f - then).square().mean() * (len(then) / self.batch_size)
                for f, then in zip(outputs_of_parts(self.model, parts), stored, strict=True)
            ]
            labelled = self.labelled(self.batch_size)
        return self.logit_strength * torch.stack(distances).sum() + self.strength * labelled

    def end_task(self, data: Any, head: Sequence[int] | None = None) -> None:
        super().end_task(data, head)
        self.outputs += self.outputs_at(self.memories[-1:])


def _joined(head: Head, pieces: Sequence[tuple[Inputs, Tensor, Tensor]]) -> tuple[HeadBatch, Tensor]:
    x, y, f = (list(column) for column in zip(*pieces, strict=True))
    return (inputs.concatenate(x), torch.cat(y), head), torch.cat(f)
