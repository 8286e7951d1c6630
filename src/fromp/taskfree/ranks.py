"""Probabilities of rank sums and means, exact and in the limit, if all orders of the values are equally likely."""

import math
from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=4096)
def rank_sum(n: int, false_alarm: float, least: int) -> tuple[int, int]:
    """The lowest r >= `least` and then the highest u such that P(U <= u) is not above `false_alarm`."""
    run = least
    while 1 / math.comb(n + run, run) > false_alarm:
        run += 1
    return run, int((mann_whitney(n, run) <= false_alarm).sum()) - 1


def mann_whitney(n: int, r: int) -> Tensor:
    """P(U <= u) for u up to n r / 2, if every order of n values and r others is as likely: (u,).

    The orders with U = u are the coefficient of q^u in prod_i (1 - q^(n + i)) / (1 - q^i), i from 1 to r.
    """
    size = n * r // 2 + 1
    chance = torch.zeros(size, dtype=torch.double)
    chance[0] = 1
    for i in range(1, r + 1):
        chance[n + i :] -= chance[: max(0, size - n - i)].clone()
        padded = torch.nn.functional.pad(chance, (0, -size % i))
        chance = padded.view(-1, i).cumsum(0).flatten()[:size] * i / (n + i)
    return chance.cumsum(0)


def chance_of_lower(some: Tensor, others: Tensor) -> float:
    """P of a rank sum as low as that of `some` among both, if every order is as likely: its normal limit, with ties."""
    _, index, counts = torch.cat([some, others]).double().unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2).double()[index]  # equal values share the mean of their ranks
    spread = float((ranks.var() * len(others) / (len(some) * len(ranks))).sqrt())
    excess = float(ranks[: len(some)].mean()) - (len(ranks) + 1) / 2
    return 0.5 * math.erfc(-excess / spread / math.sqrt(2)) if spread else 1.0


def chance_of_lower_mean(some: Tensor, others: Tensor) -> float:
    """At least P of a mean as low as that of `some`, if every choice out of both is as likely.

    min_theta (E exp(-theta (v - mean)))^n with v drawn from both: Chernoff's bound, which holds for draws without
    replacement too (Hoeffding 1963). That the mean of some is low is that the others' is high; the fewer are tighter.
    """
    every = torch.cat([some, others]).double()
    few, every = (some, every) if len(some) <= len(others) else (-others, -every)
    spread = float(every.std())
    if not spread > 0:
        return 1.0
    above = (every - few.double().mean()) / spread
    theta = 2 ** torch.arange(-8, 12, 0.5, dtype=torch.double, device=every.device)
    bounds = torch.logsumexp(-theta[:, None] * above, 1) - math.log(len(every))
    return math.exp(min(0.0, len(few) * float(bounds.min())))
