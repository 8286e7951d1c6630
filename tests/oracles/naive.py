"""The paper's formulas as plain loops over examples, outputs and weights: the slow twin of every fast function."""

import torch
from torch.func import functional_call


def weights_of(model, names=None):
    """The trainable weights, by name."""
    chosen = {n: p for n, p in model.named_parameters() if p.requires_grad} if names is None else names
    return {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters() if n in chosen}


def single(model, x, i, head, weights):
    """f(x_i), one example at a time: (c,)."""
    one = pick(x, i)
    if isinstance(one, dict):
        f = functional_call(model, weights, (), one)[0]
    elif isinstance(one, tuple):
        f = functional_call(model, weights, one)[0]
    else:
        f = functional_call(model, weights, (one,))[0]
    return f if head is None else f[list(head)]


def pick(x, i):
    if isinstance(x, dict):
        return {k: v[i : i + 1] for k, v in x.items()}
    if isinstance(x, tuple):
        return tuple(v[i : i + 1] for v in x)
    return x[i : i + 1]


def jacobian(model, x, n, head=None, function=None):
    """d function(f(x_i))_c / d w, example by example and output by output: (i, c, w)."""
    weights = weights_of(model)
    rows = []
    for i in range(n):
        out = single(model, x, i, head, weights)
        if function is not None:
            out = function(out[None])[0]
        row = []
        for c in range(len(out)):
            g = torch.autograd.grad(out[c], list(weights.values()), retain_graph=True, allow_unused=True)
            flat = [torch.zeros_like(w) if gi is None else gi for gi, w in zip(g, weights.values(), strict=True)]
            row.append(torch.cat([gi.flatten() for gi in flat]))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def lambdas(model, x, y, n, likelihood, head=None):
    """d2 nll / d f2 at every example, by two loops of derivatives: (i, c, d)."""
    weights = weights_of(model)
    result = []
    for i in range(n):
        f = single(model, x, i, head, weights).detach().requires_grad_()
        (first,) = torch.autograd.grad(likelihood.nll(f[None], y[i : i + 1]).sum(), f, create_graph=True)
        rows = []
        for c in range(len(f)):
            if first[c].requires_grad:
                (second,) = torch.autograd.grad(first[c], f, retain_graph=True, allow_unused=True)
                rows.append(torch.zeros_like(f) if second is None else second)
            else:
                rows.append(torch.zeros_like(f))
        result.append(torch.stack(rows))
    return torch.stack(result)


def ggn_diagonal(model, x, y, n, likelihood, head=None):
    """Eq. (4) with its three sums written out: (w,)."""
    jac, lam = jacobian(model, x, n, head), lambdas(model, x, y, n, likelihood, head)
    total = torch.zeros(jac.shape[-1], dtype=jac.dtype)
    for i in range(n):
        for c in range(jac.shape[1]):
            for d in range(jac.shape[1]):
                total += jac[i, c] * lam[i, c, d] * jac[i, d]
    return total


def kernel(model, x, n, likelihood, variance, head=None):
    """Eq. (10) for each output: (c, i, j)."""
    jac = jacobian(model, x, n, head, likelihood.mean)
    k = torch.zeros(jac.shape[1], n, n, dtype=jac.dtype)
    for c in range(jac.shape[1]):
        for i in range(n):
            for j in range(n):
                k[c, i, j] = (jac[i, c] * variance * jac[j, c]).sum()
    return k


def means(model, x, n, likelihood, head=None):
    """m(x_i): (i, c)."""
    weights = weights_of(model)
    return torch.stack([likelihood.mean(single(model, x, i, head, weights)[None])[0] for i in range(n)]).detach()


def penalty_gradient(model, tasks, tau, likelihood):
    """Algorithm 1's g_FR: H K^-1 (m - m0) with H = (Lambda J)' formed column by column: (w,)."""
    total = 0
    for x, n, head, mean0, inverse in tasks:  # mean0: (i, c), inverse: (c, i, j)
        h = jacobian(model, x, n, head, likelihood.mean)
        m = means(model, x, n, likelihood, head)
        for c in range(m.shape[1]):
            total = total + h[:, c].T @ (inverse[c] @ (m[:, c] - mean0[:, c]))
    return tau * total


def penalty(model, tasks, tau, likelihood):
    """tau / 2 sum (m - m0)' K^-1 (m - m0)."""
    total = 0.0
    for x, n, head, mean0, inverse in tasks:
        d = means(model, x, n, likelihood, head) - mean0
        for c in range(d.shape[1]):
            total += 0.5 * tau * float(d[:, c] @ inverse[c] @ d[:, c])
    return total


def held(model, teacher, x, heads, distance):
    """The mean over points, and the heads held at each, of a distance between two networks: a scalar.

    heads: for each point the list of its heads. distance: (f, old) -> a number, for one point and head.
    """
    total, count = 0.0, 0
    for i, own in enumerate(heads):
        f, old = model(x[i : i + 1])[0], teacher(x[i : i + 1])[0].detach()
        for head in own:
            total = total + distance([f[c] for c in head], [old[c] for c in head])
            count += 1
    return total / count


def logit_distance(likelihood, f, old):
    """sum_c (f_c - f_old_c)^2, output by output."""
    return sum((a - b) ** 2 for a, b in zip(f, old, strict=True))


def mean_distance(likelihood, f, old):
    """sum_c (m_c - m_old_c)^2, output by output."""
    m, m0 = (likelihood.mean(torch.stack(list(v))[None])[0] for v in (f, old))
    return sum((m[c] - m0[c]) ** 2 for c in range(len(m)))


def hessian_distance(likelihood, f, old):
    """sum_cd (f_c - f_old_c) Lambda_cd(f_old) (f_d - f_old_d), term by term."""
    lam = likelihood.hessian(torch.stack(list(old))[None])[0]
    d = [a - b for a, b in zip(f, old, strict=True)]
    return sum(d[c] * lam[c, e] * d[e] for c in range(len(d)) for e in range(len(d)))


def class_divergence(likelihood, f, old, temperature=1.0):
    """T^2 sum_c p_old_c log(p_old_c / p_c) over classes, from the definition."""
    f, old = (torch.stack(list(v)) / temperature for v in (f, old))
    p, p0 = (v.exp() / v.exp().sum() for v in (f, old))
    return temperature**2 * sum(p0[c] * (p0[c] / p[c]).log() for c in range(len(p)))


def data_wide(model, z, x, y, likelihood, d, jitter, head=None):
    """1/N sum_n sum_c Lambda_cc(x_n) (k_c(x_n, Z) K_c^-1 d_c)^2 with k = J J', example by example."""
    at_z, at_x = jacobian(model, z, len(z), head), jacobian(model, x, len(x), head)
    lam, total = lambdas(model, x, y, len(x), likelihood, head), 0.0
    for c in range(d.shape[1]):
        k = at_z[:, c] @ at_z[:, c].T
        solved = torch.linalg.solve(k + jitter * k.diagonal().mean() * torch.eye(len(k), dtype=k.dtype), d[:, c])
        for n in range(len(x)):
            total += lam[n, c, c] * sum(at_x[n, c] @ at_z[i, c] * solved[i] for i in range(len(z))) ** 2
    return total / len(x)
