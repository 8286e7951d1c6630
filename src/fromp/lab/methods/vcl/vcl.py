"""Variational continual learning: every weight a Gaussian, each task's posterior the prior of the next."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, final

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fromp.derivatives.calls import LinearCall
from fromp.derivatives.model import (
    Head,
    Weights,
    as_head,
    check_head,
    detached,
    device_of,
    evaluating,
    outputs,
    trainable,
)
from fromp.derivatives.tape import Tape
from fromp.foundation import inputs
from fromp.foundation.errors import CheckpointError, FrompError
from fromp.foundation.examples import Examples, SomeExamples, TaskData, as_examples
from fromp.foundation.inputs import Inputs
from fromp.foundation.state import State, field, set_generator, whole
from fromp.lab.methods.base import TEST_SAMPLES, HeadBatch, Method, TrainingSets
from fromp.lab.methods.card import MethodCard, register
from fromp.lab.methods.last_linear import last_linear
from fromp.lab.methods.vcl.coreset import Coreset, MemorableCoreset, RandomCoreset
from fromp.lab.methods.vcl.gaussians import Gaussians, kl
from fromp.lab.settings import AtLeastOne, Positive, settings
from fromp.likelihoods import Likelihood
from fromp.memory import Memory

SMALLEST_VARIANCE = 1e-16  # below this variance of an output its root is not differentiated

STARTS = ("fresh", "drawn", "initial", "posterior")  # where each task's training begins
DRAWN = 0.1  # the deviation of the weights that the authors draw


@final
class VCL(Method):
    """E_q[mean nll] + KL(q_t || q_(t-1)) / N, q_t(w) = prod_w N(mean_w, deviation_w^2) (Nguyen et al. 2018, Eq. 4).

    As improved by Swaroop et al. 2019: outputs of linear maps are sampled instead of their weights (local
    reparameterisation), and each task starts from small deviations around fresh random weights: in the last posterior,
    weights that were of no use are as wide as the prior, and would drown the new data in noise. Fresh are the model's
    initial weights, for each task in another order within every tensor. start="drawn" draws them from N(0, 0.1^2), as
    the authors do; start="initial" takes the initial ones in their own order each time; start="posterior" starts where
    the last task ended, as in the first of the two papers. A weight that an example meets more than once, as in a
    convolution, or in another way is drawn for the whole minibatch: its uses would otherwise get noise of their own
    each. The means are the model's own weights. A weight that only other heads use is left out of the KL, and so stays
    as it was until its own head is trained.

    With a coreset, some examples of each task are withheld from its training; before a test, the posterior of all
    tasks is refined on them, head by head, and put back afterwards.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        prior_precision: float,
        initial_deviation: float,
        seed: int,
        coreset: Coreset | None = None,
        coreset_epochs: int = 0,
        batch_size: int = 128,
        lr: float = 1e-3,
        start: str = "fresh",
    ) -> None:
        super().__init__(model, likelihood)
        if start not in STARTS:
            raise FrompError(f"unknown start '{start}'; known: {', '.join(STARTS)}.")
        self.start = start
        self.coreset, self.coreset_epochs, self.batch_size, self.lr = coreset, coreset_epochs, batch_size, lr
        weights = detached(model, trainable(model))
        self.log_deviation = {
            name: torch.full_like(w, math.log(initial_deviation), requires_grad=True) for name, w in weights.items()
        }
        self._start = self._posterior().copies()
        self.prior = Gaussians(
            {name: torch.zeros_like(w, requires_grad=False) for name, w in weights.items()},
            {
                name: torch.full_like(w, -0.5 * math.log(prior_precision), requires_grad=False)
                for name, w in weights.items()
            },
        )
        self.num_examples = 0  # N of the current task; 0 between tasks
        self._ended = 0  # number of tasks that have ended
        self._other_heads_only: dict[str, Tensor] = {}  # 1 where a weight is of use to other heads only
        self._sampled: tuple[str, ...] | None = None  # the weights that are not applied once, by a linear map
        self._refined: dict[Head, Gaussians] = {}
        self._held: Memory | None = None
        self._seed = seed
        self._noise = torch.Generator(device_of(model)).manual_seed(seed)

    def parameters(self) -> list[Tensor]:
        return [*super().parameters(), *self.log_deviation.values()]

    def begin_task(self, examples: Examples, head: Head, past: TrainingSets) -> TrainingSets:
        if changed := set(trainable(self.model)) ^ set(self.log_deviation):
            raise FrompError(
                f"'{min(changed)}' was frozen or unfrozen after VCL was made, which has a deviation for each weight "
                "that was to be trained then; make another VCL for the model as it is now."
            )
        if self.coreset is not None and self.coreset.size >= len(examples):
            raise FrompError(
                f"a coreset of {self.coreset.size} leaves nothing of the task's {len(examples)} examples to train on; "
                "withhold fewer."
            )
        x, _ = examples.take(torch.arange(min(len(examples), 2)))
        x = inputs.move(x, device_of(self.model))
        self._sampled = not_linear(self.model, x, head)
        self._other_heads_only = of_other_heads(self.model, x, head, self._sampled)
        if self.start != "posterior":
            self._posterior().copy_where(
                self._beginning(), {name: 1 - mask for name, mask in self._other_heads_only.items()}
            )
        self.num_examples = len(examples)
        if self.coreset is None:
            return [(examples, head)]
        held, scores = self.coreset.choose(examples, len(self.memories))
        left = torch.ones(len(examples), dtype=torch.bool)
        left[held] = False
        x, y = examples.take(held)
        x = inputs.transform(lambda part: part.clone(), x)
        self._held = Memory(inputs.move(x, device_of(self.model)), y.to(device_of(self.model)), scores, head, held)
        self.num_examples = int(left.sum())
        return [(SomeExamples(examples, left.nonzero().flatten()), head)]

    def data_loss(self, batch: Sequence[HeadBatch]) -> Tensor:
        if not self.num_examples:
            raise FrompError("VCL needs the number of examples; call begin_task before training on a task.")
        total = sum(len(y) for _, y, _ in batch)
        nlls = [
            self.likelihood.nll(self._sample(self._posterior(), x, head, self._noise), y).sum() for x, y, head in batch
        ]
        return torch.stack(nlls).sum() / total

    def penalty(self) -> Tensor:
        if not self.num_examples:
            return super().penalty()
        kept = {name: 1 - mask for name, mask in self._other_heads_only.items()}
        return kl(self._posterior(), self.prior, kept) / self.num_examples

    def end_task(self, data: TaskData, head: Sequence[int] | None = None) -> None:
        if self.coreset is not None and self._held is None:
            raise FrompError("no coreset has been withheld from this task; call begin_task before training on it.")
        if self._sampled is None:  # it was never begun
            x, _ = as_examples(data).take(torch.arange(min(len(as_examples(data)), 2)))
            self._sampled = not_linear(self.model, inputs.move(x, device_of(self.model)), as_head(head))
        posterior = self._posterior().copies()
        if self._other_heads_only:
            posterior.copy_where(self.prior, self._other_heads_only)
        self.prior, self._other_heads_only = posterior, {}
        self._ended, self.num_examples = self._ended + 1, 0
        if self.coreset is not None and self._held is not None:
            self._memories.append(self._held)
            self._held = None
            self._refined = {head: self._refine(head) for head in dict.fromkeys(m.head for m in self.memories)}

    def predict_outputs(self, x: Inputs, head: Head, task: int) -> Tensor:
        """The mean prediction over samples of the weights, by the posterior that was refined for the head: (b, c)."""
        q = self._refined.get(head, self._posterior())
        noise = torch.Generator(device_of(self.model)).manual_seed(self._seed)
        means = [self.likelihood.mean(self._sample(q, x, head, noise)) for _ in range(TEST_SAMPLES)]
        return torch.stack(means).mean(0)

    def state_dict(self) -> State:
        return {
            "memories": [memory.state_dict() for memory in self.memories],
            "log_deviation": dict(self.log_deviation),
            "prior": self.prior.state_dict(),
            "start": self._start.state_dict(),
            "refined": [{"head": head, "q": q.state_dict()} for head, q in self._refined.items()],
            "generator": self._noise.get_state(),
            "ended": self._ended,
            "num_examples": self.num_examples,
            "sampled": self._sampled,
        }

    def load_state_dict(self, state: State) -> None:
        device, like = device_of(self.model), self.log_deviation
        log_deviation = whole(state, "log_deviation", like)
        memories = [Memory.from_state(memory, device) for memory in field(state, "memories", list)]
        prior, start = (Gaussians.from_state(field(state, key, dict), like) for key in ("prior", "start"))
        refined = {
            as_head(field(of, "head", list, type(None))): Gaussians.from_state(field(of, "q", dict), like)
            for of in field(state, "refined", list)
        }
        if heads := {memory.head for memory in memories} ^ set(refined):
            raise CheckpointError(f"the saved refined posteriors and coresets differ in {heads}; restore a copy.")
        ended, num_examples = field(state, "ended", int), field(state, "num_examples", int)
        sampled = field(state, "sampled", list, type(None))
        if ended < 0 or num_examples < 0 or not set(map(str, sampled or ())) <= set(like):
            raise CheckpointError("the saved 'ended', 'num_examples' or 'sampled' is wrong; restore it from a copy.")
        if self.coreset is not None and len(memories) != ended:
            raise CheckpointError(f"{len(memories)} coresets were saved after {ended} tasks; restore them from a copy.")
        noise = torch.Generator(device)
        set_generator(noise, state, "generator")
        with torch.no_grad():
            for name, value in log_deviation.items():
                like[name].copy_(value)
        self._memories, self.prior, self._start, self._refined = memories, prior, start, refined
        self._noise, self._ended, self.num_examples = noise, ended, num_examples
        self._sampled = None if sampled is None else tuple(sampled)

    def _posterior(self) -> Gaussians:
        return Gaussians(
            {n: w for n, w in self.model.named_parameters() if n in self.log_deviation}, self.log_deviation
        )

    def _sample(self, q: Gaussians, x: Inputs, head: Head, noise: torch.Generator) -> Tensor:
        """The outputs at weights drawn from q: (b, c)."""
        drawn = {name: _draw(q.mean[name], q.log_deviation[name].exp(), noise) for name in self._sampled or ()}
        linear = {name: weight for name, weight in q.mean.items() if name not in drawn}
        with LocalReparameterisation(linear, q.log_deviation, noise):
            return outputs(self.model, x, head, {**linear, **drawn})

    def _beginning(self) -> Gaussians:
        """Where the next task starts: drawn weights, or the initial ones, in another order after the first task."""
        if self.start == "initial" or (self.start == "fresh" and self._ended == 0):
            return self._start
        random = torch.Generator().manual_seed(self._seed + self._ended)

        def fresh(name: str, like: Tensor) -> Tensor:
            if self.start == "drawn":
                return (DRAWN * torch.randn(like.shape, generator=random)).to(like)
            order = torch.randperm(like.numel(), generator=random).to(like.device)
            return self._start.mean[name].flatten()[order].view_as(like)

        mean = {name: fresh(name, like) for name, like in self.log_deviation.items()}
        return Gaussians(mean, self._start.log_deviation)

    def _refine(self, head: Head) -> Gaussians:
        """The posterior after some epochs on the coreset of a head, with what was learned before as its prior."""
        q = self.prior.copies()
        values = [*q.mean.values(), *q.log_deviation.values()]
        for value in values:
            value.requires_grad_()
        own = [memory for memory in self.memories if memory.head == head]
        x, y = inputs.concatenate([m.inputs for m in own]), torch.cat([m.labels for m in own])
        optimizer = torch.optim.Adam(values, self.lr, fused=True)
        draws = torch.Generator().manual_seed(self._seed)
        noise = torch.Generator(device_of(self.model)).manual_seed(self._seed)
        with evaluating(self.model), torch.enable_grad():
            for _ in range(self.coreset_epochs):
                for batch in torch.randperm(len(y), generator=draws).split(self.batch_size):
                    f = self._sample(q, inputs.take(x, batch), head, noise)
                    loss = self.likelihood.nll(f, y[batch]).mean() + kl(q, self.prior) / len(y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        return q.copies()


class LocalReparameterisation(TorchFunctionMode):
    """Samples z = W a + b by its own mean and variance wherever a linear map applies Gaussian weights."""

    def __init__(self, weights: Weights, log_deviation: Weights, noise: torch.Generator) -> None:
        super().__init__()
        self._log_deviation = {id(weight): log_deviation[name] for name, weight in weights.items()}
        self._noise = noise

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return self._linear(*args, **kwargs) if func is F.linear else func(*args, **kwargs)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        mean = F.linear(input, weight, bias)
        if id(weight) not in self._log_deviation and id(bias) not in self._log_deviation:
            return mean
        variance = F.linear(input.square(), self._variance(weight), None if bias is None else self._variance(bias))
        return _draw(mean, variance.clamp_min(SMALLEST_VARIANCE).sqrt(), self._noise)

    def _variance(self, weight: Tensor) -> Tensor:
        log_deviation = self._log_deviation.get(id(weight))
        return torch.zeros_like(weight) if log_deviation is None else (2 * log_deviation).exp()


def of_other_heads(model: nn.Module, x: Inputs, head: Head, sampled: Sequence[str]) -> dict[str, Tensor]:
    """1 for the last layer's weights whose outputs are all outside the head, 0 for all others.

    sampled: the weights that are not applied once, by a linear map, which may be of use to the head elsewhere.
    """
    if head is None:
        return {}
    linear, num_outputs = last_linear(model, x)
    check_head(head, num_outputs)
    if not isinstance(linear.weight, nn.Parameter):
        raise FrompError(
            "the weight of the model's last nn.Linear is computed from others, and VCL cannot tell which of them "
            "belong to a head; remove its parametrisation."
        )
    others = [k for k in range(num_outputs) if k not in head]
    elsewhere = {name: torch.zeros_like(w) for name, w in detached(model, trainable(model)).items()}
    for name, weight in model.named_parameters():
        if (weight is linear.weight or weight is linear.bias) and name in elsewhere and name not in sampled:
            elsewhere[name][others] = 1
    return elsewhere


def not_linear(model: nn.Module, x: Inputs, head: Head) -> tuple[str, ...]:
    """The weights that are not applied exactly once to each example, by a linear map."""
    weights = detached(model, trainable(model))
    with evaluating(model):
        tape = Tape(model, weights, x, head)
    once = {
        use.names[0]
        for use in tape.uses
        if use.direct and isinstance(use.call, LinearCall) and use.call.once and tape.times[use.names[0]] == 1
    }
    return tuple(name for name in weights if name not in once)


def _draw(mean: Tensor, deviation: Tensor, noise: torch.Generator) -> Tensor:
    return mean + deviation * torch.randn(mean.shape, generator=noise, device=mean.device, dtype=mean.dtype)


@settings
class Settings:
    """What VCL is built with."""

    prior_precision: Positive = 1.0
    """Precision of each weight before any data."""
    initial_deviation: Positive = 1e-3
    """Deviation of each weight when a task's training begins."""
    start: Literal["fresh", "drawn", "initial", "posterior"] = "fresh"
    """Where each task begins: at fresh or drawn weights, at the initial ones, or at the last posterior."""


@settings
class CoresetSettings(Settings):
    """What VCL with a coreset is built with."""

    memory: AtLeastOne
    """Examples withheld from each task."""
    coreset_epochs: Annotated[int, Field(ge=0)] = 100
    """Passes over the coreset before each test."""


_SPLIT = {"batch_size": 256, "lr": 3e-3, "schedule": "linear-decay"}
_TRAINING: dict[str, dict[str, Any]] = {
    "*": {"clip_norm": None},
    "toy": {"epochs": 200, "batch_size": 40, "lr": 1e-2, "schedule": "constant"},
    "split-mnist": {**_SPLIT, "epochs": 30, "initial_deviation": 0.01},
    "split-mnist-small": {**_SPLIT, "epochs": 60},
    "permuted-mnist": {"epochs": 100, "batch_size": 1024, "lr": 1e-2},
}
_CORESET_EPOCHS = {"toy": 200, "split-mnist": 600, "split-mnist-small": 600, "permuted-mnist": 200}


def _with_coreset(choose: Callable[[Likelihood, Any, int], Coreset]) -> Callable[..., Method]:
    def build(model: nn.Module, likelihood: Likelihood, s: Any, seed: int) -> Method:
        return VCL(
            model,
            likelihood,
            s.prior_precision,
            s.initial_deviation,
            seed,
            choose(likelihood, s, seed),
            s.coreset_epochs,
            s.batch_size,
            s.lr,
            s.start,
        )

    return build


register(
    MethodCard(
        name="vcl",
        colour=8,
        title="VCL",
        paper="Nguyen et al. 2018, Swaroop et al. 2019",
        keeps="means and deviations of the weights, the last and the initial ones",
        step_cost="twice the maps, and a KL",
        settings=Settings,
        build=lambda model, likelihood, s, seed: VCL(
            model, likelihood, s.prior_precision, s.initial_deviation, seed, start=s.start
        ),
        presets=_TRAINING,
    )
)
register(
    MethodCard(
        name="vcl-coreset",
        title="VCL + random coreset",
        paper="Nguyen et al. 2018, Swaroop et al. 2019",
        keeps="what vcl keeps, one refined copy per head, random points",
        step_cost="twice the maps, and a KL; the coreset before each test",
        settings=CoresetSettings,
        build=_with_coreset(lambda likelihood, s, seed: RandomCoreset(likelihood, s.memory, seed)),
        random_memory=True,
        colour=5,
        presets=_TRAINING | {name: _TRAINING[name] | {"coreset_epochs": n} for name, n in _CORESET_EPOCHS.items()},
    )
)
register(
    MethodCard(
        name="vcl-memorable",
        colour=9,
        title="VCL + memorable coreset",
        paper="Pan et al. 2020",
        keeps="what vcl keeps, one refined copy per head, FROMP's memorable points",
        step_cost="twice the maps, and a KL; the coreset before each test; a run of FROMP",
        settings=CoresetSettings,
        build=_with_coreset(lambda likelihood, s, seed: MemorableCoreset(s.kept, s.memory)),
        needs_memories_of="fromp",
        presets=_TRAINING | {name: _TRAINING[name] | {"coreset_epochs": n} for name, n in _CORESET_EPOCHS.items()},
    )
)
