"""FRCL, functional regularisation for continual learning with Gaussian processes (Titsias et al., ICLR 2020).

The last layer of the network is a GP for every output c of every task: f_c(x) = w_c' phi(x) with w_c ~ N(0, I /
prior_precision). While a task is learned, q(w_c) is a Gaussian over these weights; afterwards only q(u_c) is kept,
the Gaussian it makes of the function's values u = f(Z) + noise at the task's inducing points Z. The noise, of the
variance `jitter`, is what makes K_zz regular when there are more points than features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, NamedTuple, final

import torch
from pydantic import Field
from torch import Tensor, nn

from fromp import gp
from fromp.derivatives.budget import MEMORY_BUDGET, chunks
from fromp.derivatives.model import Head, as_head, check_head, detached, device_of, evaluating, outputs, trainable
from fromp.foundation.errors import CheckpointError, FrompError
from fromp.foundation.examples import Examples, TaskData, as_examples
from fromp.foundation.inputs import Inputs
from fromp.foundation.state import State, field, set_generator, tensor
from fromp.lab.methods.base import TEST_SAMPLES, HeadBatch, Method, TrainingSets
from fromp.lab.methods.card import MethodCard, register
from fromp.lab.methods.last_linear import last_linear
from fromp.lab.settings import AtLeastOne, Positive, settings
from fromp.likelihoods import Likelihood
from fromp.memory import Memory, assess, random_score, remember, top


class Marginals(NamedTuple):
    """q(f_c(x)) at each example and output: its mean and its variance, both (b, c)."""

    mean: Tensor
    variance: Tensor


@final
@dataclass(frozen=True)
class Inducing:
    """q(u_c) = N(mean_c, covariance_c) at one task's inducing points, as it was when the task ended."""

    mean: Tensor  # (c, i)
    covariance: Tensor  # (c, i, j)
    log_det: Tensor  # sum_c log det covariance_c

    @cached_property
    def second_moment(self) -> Tensor:
        """sum_c E[u_c u_c'], which is all that the outputs' KLs need, because they share their prior: (i, j)."""
        return self.covariance.sum(0) + self.mean.T @ self.mean

    def state_dict(self) -> State:
        """Everything it holds."""
        return {"mean": self.mean, "covariance": self.covariance, "log_det": self.log_det}

    @classmethod
    def from_state(cls, state: State, points: int, device: torch.device) -> "Inducing":
        """The q(u) that `state_dict` describes, at this many points, on a device."""
        mean = tensor(state, "mean", -1, points, floating=True).to(device)
        covariance = tensor(state, "covariance", len(mean), points, points, floating=True).to(device)
        if bool((covariance.diagonal(dim1=-2, dim2=-1) <= 0).any()):
            raise CheckpointError("the saved 'covariance' has a variance that is not positive; restore it from a copy.")
        log_det = tensor(state, "log_det", floating=True).to(device)
        if log_det.ndim:
            raise CheckpointError("the saved 'log_det' is not one number; restore it from a copy.")
        return cls(mean, covariance, log_det)


@final
@dataclass(frozen=True)
class LastLayer:
    """The GP of one output: w ~ N(0, I / prior_precision), K_zz = Phi Phi' / prior_precision + jitter I."""

    prior_precision: float
    jitter: float

    def remember(self, phi: Tensor, mean: Tensor, factor: Tensor) -> Inducing:
        """q(u_c) = N(Phi mean_c, Phi factor_c factor_c' Phi' + jitter I) for q(w_c) = N(mean_c, factor_c factor_c')."""
        phi, mean, factor = phi.double(), mean.double(), factor.double()
        covariance = phi @ factor @ (phi @ factor).mT
        root = gp.cholesky(covariance, self.jitter)
        eye = torch.eye(len(phi), dtype=phi.dtype, device=phi.device)
        return Inducing(mean @ phi.T, covariance + self.jitter * eye, _log_det(root).sum())

    def kl_of_weights(self, mean: Tensor, factor: Tensor) -> Tensor:
        """sum_c KL(q(w_c) || p(w_c)), the first penalty of the paper's ELBO: a scalar."""
        squares = self.prior_precision * (mean.square().sum() + factor.square().sum())
        volume = 2 * factor.diagonal(dim1=-2, dim2=-1).abs().log().sum() + mean.numel() * math.log(self.prior_precision)
        return 0.5 * (squares - mean.numel() - volume)

    def kl_of_function(self, phi: Tensor, q: Inducing) -> Tensor:
        """sum_c KL(q(u_c) || N(0, K_zz)) with K_zz at the features phi of the inducing points: a scalar."""
        c, i = q.mean.shape
        with torch.no_grad():
            z = phi.double()
            back, log_det = self._back(z)
            seen = q.second_moment @ back
            overlap = z.T @ seen
            # K_zz^-1 = (I - back Phi') / jitter, so that neither the trace nor the gradient needs more than products.
            trace = (q.second_moment.trace() - overlap.trace()) / self.jitter
            value = 0.5 * (trace - c * i + c * log_det - q.log_det)
            slope = (c * back - (seen - back @ overlap) / self.jitter).to(phi.dtype)
        # Same value, same gradient, and linear: nothing has to go back through the Cholesky factor.
        return value.to(phi.dtype) + (slope * (phi - phi.detach())).sum()

    def mean_of_weights(self, phi: Tensor, q: Inducing) -> Tensor:
        """E[w_c] under p(w | u) q(u), so that its output at x is K_xz K_zz^-1 mean_c: (c, w)."""
        return q.mean @ self._back(phi.double())[0]

    def covariance_of_weights(self, phi: Tensor, q: Inducing) -> Tensor:
        """Cov[w_c] under p(w | u) q(u): (c, w, v)."""
        z = phi.double()
        back, _ = self._back(z)
        prior = torch.eye(z.shape[1], dtype=z.dtype, device=z.device) - z.T @ back
        return prior / self.prior_precision + back.T @ q.covariance @ back

    def uncertainty(self, phi: Tensor, scatter: Tensor) -> float:
        """tr(K_xx - K_xz K_zz^-1 K_zx), the variance left by points with the features phi; scatter is Phi_x' Phi_x."""
        explained = (phi.T @ self._back(phi)[0] * scatter).sum()
        return float((scatter.trace() - explained) / self.prior_precision)

    def _back(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """K_zz^-1 Phi / prior_precision, whose transpose leads from values at Z back to weights, and log det K_zz.

        The Cholesky factor is that of Phi Phi' or of Phi' Phi, whichever is smaller: (i, w), a scalar.
        """
        points, features = z.shape
        ridge = self.jitter * self.prior_precision
        wide = points <= features
        root = gp.cholesky((z @ z.T if wide else z.T @ z)[None], ridge)[0]
        back = torch.cholesky_solve(z, root) if wide else torch.cholesky_solve(z.T, root).T
        rest = max(points - features, 0) * math.log(ridge)
        return back, _log_det(root) + rest - points * math.log(self.prior_precision)


def exchange(layer: LastLayer, phi: Tensor, chosen: Tensor, tries: int, generator: torch.Generator) -> Tensor:
    """The inducing points after `tries` exchanges with random others, each kept if the uncertainty falls: (i,)."""
    size, phi = len(chosen), phi.double()
    inside = torch.zeros(len(phi), dtype=torch.bool, device=chosen.device).index_fill_(0, chosen, True)
    order = torch.cat([chosen, (~inside).nonzero().flatten()])  # the first are the chosen ones
    if tries == 0 or len(order) == size:
        return chosen
    scatter = phi.T @ phi
    least = layer.uncertainty(phi[chosen], scatter)
    places = torch.randint(size, (tries,), generator=generator)
    others = torch.randint(size, len(order), (tries,), generator=generator)
    for pair in torch.stack([places, others], 1):
        order[pair] = order[pair.flip(0)]
        uncertainty = layer.uncertainty(phi[order[:size]], scatter)
        if uncertainty < least:
            least = uncertainty
        else:
            order[pair] = order[pair.flip(0)]
    return order[:size]


@final
class FRCL(Method):
    """E_q[nll] + (KL(q(w) || p(w)) + sum_s KL(q(u_s) || p(u_s))) / N over the past tasks s: minus the paper's ELBO.

    The expectation is taken with one draw of f at each example. The penalties depend on the features phi, which all
    tasks share; every task has a last layer of its own, also where a benchmark has one head, so that a test has to say
    which task it is of. The model's own last layer is not used.

    memory: inducing points of each task.
    prior_precision: of every weight of a last layer. jitter: on the diagonal of K_zz.
    initial_deviation: of every weight under q(w) when a task begins; as wide as the prior, the draws of f can drown
        the labels.
    search: exchanges tried to find good inducing points; none for random ones.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        memory: int,
        prior_precision: float,
        jitter: float,
        initial_deviation: float,
        search: int,
        seed: int,
    ) -> None:
        super().__init__(model, likelihood)
        trainable(model)
        positive = {"prior_precision": prior_precision, "jitter": jitter, "initial_deviation": initial_deviation}
        for name, value in {"memory": memory, **positive}.items():
            if not 0 < value < float("inf"):
                raise FrompError(f"{name}={value} must be positive and finite.")
        self.memory_size, self.initial_deviation, self.search = memory, initial_deviation, search
        self.layer = LastLayer(prior_precision, jitter)
        self.past: list[Inducing] = []
        self.task, self.num_examples = -1, 1  # those of q(w), which is kept until the next task begins
        self.mean = self.factor = torch.empty(0, 0)  # (c, w), (c, w, v)
        self._linear: nn.Linear | None = None
        self._generator = torch.Generator().manual_seed(seed)

    def parameters(self) -> list[Tensor]:
        """The model's weights, of which the last layer's get no gradient, and those of q(w)."""
        return [*super().parameters(), self.mean, self.factor]

    def begin_task(self, examples: Examples, head: Head, past: TrainingSets) -> TrainingSets:
        linear, num_outputs = last_linear(self.model, examples.take(torch.arange(min(2, len(examples))))[0])
        if head is not None:
            check_head(head, num_outputs)
            num_outputs = len(head)
        self.task, self.num_examples, self._linear = len(self.past), len(examples), linear
        start = self.initial_deviation * torch.eye(linear.in_features + 1).to(linear.weight)
        self.factor = start.repeat(num_outputs, 1, 1).requires_grad_()
        self.mean = torch.zeros_like(self.factor[..., 0]).requires_grad_()
        return super().begin_task(examples, head, past)

    def data_loss(self, batch: Sequence[HeadBatch]) -> Tensor:
        if self.task < len(self.past):
            raise FrompError("FRCL has no last layer for this task yet; call begin_task before training on it.")
        ((x, y, _),) = batch
        mean, variance = _marginals(self.features(x), self.mean, self.factor.tril())
        noise = torch.randn(mean.shape, generator=self._generator, dtype=mean.dtype).to(mean.device)
        return self.likelihood.nll(mean + variance.sqrt() * noise, y).mean()

    def penalty(self) -> Tensor:
        if self.task < 0:
            return super().penalty()
        total = self.layer.kl_of_weights(self.mean, self.factor.tril())
        with evaluating(self.model):
            for task in range(self.task):
                total = total + self.layer.kl_of_function(*self._remembered(task))
        return total / self.num_examples

    def end_task(self, data: TaskData, head: Sequence[int] | None = None) -> None:
        examples, head = as_examples(data), as_head(head)
        if self.task < len(self.past):  # it never began: it is remembered as untrained
            self.begin_task(examples, head, [])
        generator = torch.Generator()
        generator.set_state(self._generator.get_state())
        with evaluating(self.model), torch.no_grad():
            scores, classes = assess(self.model, examples, self.likelihood, generator, head, random_score)
            of_task = chunks(self.model, detached(self.model, trainable(self.model)), examples, head, MEMORY_BUDGET)
            phi = torch.cat([self.features(x) for x, _ in of_task])

            def select(scores: Tensor, classes: Tensor, size: int) -> Tensor:
                return exchange(self.layer, phi, top(scores, classes, size), self.search, generator)

            memory = remember(examples, scores, classes, self.memory_size, head, select)
            phi = self.features(memory.inputs)
            q = self.layer.remember(phi, self.mean, self.factor.tril())
        self._memories.append(replace(memory, scores=phi.square().sum(1) / self.layer.prior_precision))  # k(z, z)
        self.past.append(q)
        self._generator = generator

    def predict(self, x: Inputs, task: int) -> Marginals:
        """q(f(x)) of a task: through q(w) of the latest, through q(u) and the present kernel of those before."""
        with evaluating(self.model), torch.no_grad():
            phi = self.features(x)
            if task == self.task:
                return _marginals(phi, self.mean, self.factor.tril())
            remembered = self._remembered(task)
            mean = phi.double() @ self.layer.mean_of_weights(*remembered).T
            covariance = self.layer.covariance_of_weights(*remembered)
            variance = torch.einsum("bw,cwv,bv->bc", phi.double(), covariance, phi.double())
            return Marginals(mean.to(phi.dtype), variance.clamp_min(0).to(phi.dtype))

    def predict_outputs(self, x: Inputs, head: Head, task: int) -> Tensor:
        """The mean prediction over draws of f: (b, c)."""
        mean, variance = self.predict(x, task)
        noise = torch.Generator().manual_seed(0)
        draws = (torch.randn(mean.shape, generator=noise, dtype=mean.dtype).to(mean) for _ in range(TEST_SAMPLES))
        return torch.stack([self.likelihood.mean(mean + variance.sqrt() * draw) for draw in draws]).mean(0)

    def features(self, x: Inputs) -> Tensor:
        """phi(x): what the model gives to its last layer, and a constant 1: (b, w)."""
        if self._linear is None:
            self._linear, _ = last_linear(self.model, x)
        seen: list[Tensor] = []
        hook = self._linear.register_forward_pre_hook(
            lambda module, given, named: seen.append(*given, *named.values()), with_kwargs=True
        )
        try:
            outputs(self.model, x)
        finally:
            hook.remove()
        return torch.cat([seen[-1], torch.ones_like(seen[-1][:, :1])], 1)

    def state_dict(self) -> State:
        return {
            "memories": [memory.state_dict() for memory in self.memories],
            "past": [q.state_dict() for q in self.past], "task": self.task,
            "num_examples": self.num_examples, "mean": self.mean, "factor": self.factor,
            "generator": self._generator.get_state(),
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        device = device_of(self.model)
        memories = [Memory.from_state(memory, device) for memory in field(state, "memories", list)]
        saved = field(state, "past", list)
        if len(saved) != len(memories):
            raise CheckpointError(f"{len(memories)} memories were saved for {len(saved)} tasks; restore a copy.")
        past = [Inducing.from_state(q, len(m), device) for q, m in zip(saved, memories, strict=True)]
        task, num_examples = field(state, "task", int), field(state, "num_examples", int)
        if not -1 <= task <= len(past) or num_examples < 1:
            raise CheckpointError(f"task {task} of {num_examples} examples does not follow {len(past)} tasks.")
        mean, factor = tensor(state, "mean", -1, -1, floating=True), tensor(state, "factor", floating=True)
        if mean.numel() and factor.shape != (*mean.shape, mean.shape[1]):
            raise CheckpointError(f"the saved 'factor' has the shape {tuple(factor.shape)}; restore it from a copy.")
        generator = torch.Generator()
        set_generator(generator, state, "generator")
        like = next(self.model.parameters())
        self._memories, self.past, self.task, self.num_examples = memories, past, task, num_examples
        self.mean, self.factor = _into(self.mean, mean.to(like)), _into(self.factor, factor.to(like))
        self._generator = generator

    def _remembered(self, task: int) -> tuple[Tensor, Inducing]:
        """The current features of a past task's inducing points, and q(u) there."""
        return self.features(self.memories[task].inputs), self.past[task]


def _marginals(phi: Tensor, mean: Tensor, factor: Tensor) -> Marginals:
    """mean_c' phi and |factor_c' phi|^2, for q(w_c) = N(mean_c, factor_c factor_c')."""
    return Marginals(phi @ mean.T, torch.einsum("bw,cwv->bcv", phi, factor).square().sum(-1))


def _into(old: Tensor, new: Tensor) -> Tensor:
    """The new values, in the old tensor if it has their shape: an optimizer may refer to it."""
    if old.shape != new.shape:
        return new.clone().requires_grad_()
    with torch.no_grad():
        return old.copy_(new)


def _log_det(root: Tensor) -> Tensor:
    return 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


@settings
class RandomSettings:
    """What FRCL with random inducing points is built with."""

    memory: AtLeastOne
    """Inducing points kept of each task."""
    prior_precision: Positive = 1.0
    """Precision of each weight of the last layer before any data."""
    jitter: Positive = 1e-3
    """Variance of the noise at the inducing points."""
    initial_deviation: Positive = 0.1
    """Deviation of the last layer's weights before training."""


@settings
class TraceSettings(RandomSettings):
    """What FRCL with chosen inducing points is built with."""

    search: Annotated[int, Field(ge=0)] = 1000
    """Exchanges that are tried in the search for inducing points."""


def _card(
    name: str, title: str, settings: type, points: str, build: Any, random_memory: bool, colour: int
) -> MethodCard:
    return MethodCard(
        name=name,
        title=title,
        paper="Titsias et al. 2020",
        keeps=f"{points}; the GP's posterior there per task and class",
        step_cost="one pass over all memory, one Cholesky factor per task, one covariance per class",
        settings=settings,
        build=build,
        needs_task_at_test=True,
        random_memory=random_memory,
        colour=colour,
        presets={
            "*": {"clip_norm": None},
            "split-mnist": {"lr": 3e-4},
            "split-mnist-small": {"lr": 3e-4},
            "permuted-mnist": {"lr": 3e-3},
        },
    )


register(
    _card(
        "frcl-random",
        "FRCL-RND",
        RandomSettings,
        "random points",
        lambda model, likelihood, s, seed: FRCL(
            model, likelihood, s.memory, s.prior_precision, s.jitter, s.initial_deviation, search=0, seed=seed
        ),
        random_memory=True,
        colour=15,
    )
)
register(
    _card(
        "frcl-trace",
        "FRCL-TR",
        TraceSettings,
        "points that leave little open",
        lambda model, likelihood, s, seed: FRCL(
            model, likelihood, s.memory, s.prior_precision, s.jitter, s.initial_deviation, search=s.search, seed=seed
        ),
        random_memory=False,
        colour=14,
    )
)
