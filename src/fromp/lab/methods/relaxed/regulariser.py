"""FROMP with any of its approximations undone: Eq. (7) instead of Eq. (8)."""

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from fromp.derivatives.model import as_head, detached, device_of, named_weights, trainable
from fromp.foundation.checked import Setting, count, number
from fromp.foundation.errors import CheckpointError
from fromp.foundation.examples import TaskData, as_examples
from fromp.foundation.state import State, field, set_generator, tensor
from fromp.lab.methods.relaxed.covariance import Covariance, Diagonal
from fromp.lab.methods.relaxed.points import Candidates, Points
from fromp.lab.methods.relaxed.rows import Prior, groups, linearised, means
from fromp.lab.methods.relaxed.trace import directions, trace
from fromp.likelihoods import Likelihood
from fromp.memory import Memory, assess, remember
from fromp.protocol import no_penalty


@final
class Relaxed:
    """tau / 2 (sum (m - m0)' K^-1 (m - m0) + Tr K^-1 K(w)), Eq. (7); by default it is FROMP's penalty, Eq. (8).

    Made for small networks: the gradients of all rows are written out when a task ends.

    covariance: of q(w), approximation 5.
    prior_samples: draws of q_(t-1)(w) at which the prior is taken, whose penalties are averaged; 0 takes it at the
        mean, approximation 1.
    trace_directions: in which the trace is estimated at each step, without bias; 0 leaves it out, approximation 2. Its
        constant stays, so that the penalty is not zero at unchanged weights.
    across_tasks, across_classes: whether one kernel ties together the rows of all tasks, and of all outputs:
        approximation 3, and that of the multiclass appendix.
    points: which examples are kept, instead of those with the highest trace of Lambda; with a diagonal covariance.
    """

    tau = Setting(number)
    memory_size = Setting(count)
    jitter = Setting(number)

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        tau: float,
        memory_size: int,
        jitter: float,
        covariance: Covariance,
        *,
        prior_samples: int = 0,
        trace_directions: int = 0,
        across_tasks: bool = False,
        across_classes: bool = False,
        points: Points | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.likelihood = model, likelihood
        self.tau, self.memory_size, self.jitter = tau, memory_size, jitter
        self.covariance, self.points = covariance, points
        self.prior_samples, self.trace_directions = prior_samples, trace_directions
        self.across_tasks, self.across_classes = across_tasks, across_classes
        self.memories: list[Memory] = []
        self._widths: list[int] = []  # outputs of each task
        self._priors: list[Prior] = []  # one for each sample
        self._generator = torch.Generator().manual_seed(seed)

    def penalty(self) -> Tensor:
        """The penalty at the model's weights: a scalar, zero before the first task has ended."""
        if not self._priors:
            return no_penalty(self.model)
        m = means(self.model, self.memories, self.likelihood)
        return 0.5 * self.tau * torch.stack([self._of(prior, m) for prior in self._priors]).mean()

    def _of(self, prior: Prior, m: Tensor) -> Tensor:
        distance = prior.squared_distance(m)
        if not self.trace_directions:
            return distance
        z = directions(self.trace_directions, m, self._generator)
        every = named_weights(self.model)
        return distance + trace(prior, m, {n: every[n] for n in self.covariance.names}, self.covariance, z)

    def end_task(
        self, data: TaskData, head: Sequence[int] | None = None, share: Mapping[str, Tensor] | None = None
    ) -> None:
        """Remember a task, and take the prior anew; share: the task's GGN diagonal, if an optimiser has found it."""
        examples, own = as_examples(data), as_head(head)
        scores, classes = assess(self.model, examples, self.likelihood, self._generator, own)
        if share is not None and isinstance(self.covariance, Diagonal):
            covariance: Covariance = self.covariance.with_share(share)
        else:
            covariance = self.covariance.with_task(self.model, examples, self.likelihood, own)
        if self.points is not None and isinstance(covariance, Diagonal):
            x, variance = examples.take(torch.arange(len(examples)))[0], covariance.variance
            of = (self.model, self.likelihood, variance, x, classes, own, self.memory_size, self._generator)
            scores = self.points(Candidates(*of))
        memories = [*self.memories, remember(examples, scores, classes, self.memory_size, own)]
        at_mean = detached(self.model, trainable(self.model))
        draws = [covariance.draw(self._generator) for _ in range(self.prior_samples)]
        moved = ({n: (at_mean[n] + d).detach().requires_grad_() for n, d in draw.items()} for draw in draws)
        places = [{**at_mean, **some} for some in moved] or [at_mean]
        priors, widths = [], []
        for weights in places:
            found = [linearised(self.model, weights, covariance.names, memory, self.likelihood) for memory in memories]
            widths = [len(m) // len(memory) for (m, _), memory in zip(found, memories, strict=True)]
            root = torch.cat([covariance.root(gradients).double() for _, gradients in found])
            rows = groups(memories, widths, self.across_tasks, self.across_classes)
            priors.append(Prior.of(torch.cat([m for m, _ in found]), root, rows, self.jitter))
        self.memories, self._widths, self._priors, self.covariance = memories, widths, priors, covariance

    def curvature(self) -> dict[str, Tensor]:
        """diag (d m / d w)' K^-1 (d m / d w) at the model's weights: the functional prior's part of VON's precision."""
        every = named_weights(self.model)
        weights = {name: every[name] for name in self.covariance.names}
        total = {name: torch.zeros_like(w) for name, w in weights.items()}
        if not self._priors:
            return total
        m = means(self.model, self.memories, self.likelihood)
        for prior in self._priors:
            for z in torch.eye(len(m)).to(m):
                row = m @ prior.whitened(z)
                found = torch.autograd.grad(row, [*weights.values()], retain_graph=True, materialize_grads=True)
                for own, g in zip(total.values(), found, strict=True):
                    own += g.square() / len(self._priors)
        return total

    @property
    def draws(self) -> torch.Generator:
        """Where all its random numbers come from."""
        return self._generator

    def state_dict(self) -> State:
        """Memory, covariance, priors and draws."""
        return {
            "memories": [memory.state_dict() for memory in self.memories],
            "widths": self._widths,
            "covariance": self.covariance.state_dict(),
            "priors": [{"mean": prior.mean, "factors": prior.factors} for prior in self._priors],
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: State) -> None:
        """Return to a state that `state_dict` gave."""
        device = device_of(self.model)
        memories = [Memory.from_state(memory, device) for memory in field(state, "memories", list)]
        widths = [int(width) for width in field(state, "widths", list)]
        if len(widths) != len(memories):
            raise CheckpointError(f"{len(memories)} memories and {len(widths)} heads were saved; restore a copy.")
        rows = groups(memories, widths, self.across_tasks, self.across_classes)
        count, priors = sum(w * len(memory) for w, memory in zip(widths, memories, strict=True)), []
        for saved in field(state, "priors", list):
            mean, factors = tensor(saved, "mean", count), field(saved, "factors", list)
            if [list(factor.shape) for factor in factors] != [[len(own)] * 2 for own in rows]:
                raise CheckpointError("the saved kernels are of other rows; run with the settings that were saved.")
            priors.append(Prior.restored(mean.to(device), rows, [factor.to(device) for factor in factors]))
        generator = torch.Generator()
        set_generator(generator, state, "generator")
        self.covariance.load_state_dict(field(state, "covariance", dict))
        self.memories, self._widths, self._priors, self._generator = memories, widths, priors, generator
