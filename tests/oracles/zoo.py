"""Small float64 networks that use their weights in every way we could think of."""

import torch
import torch.nn.functional as F
from torch import nn


class Tied(nn.Module):
    """One linear layer applied twice, and its weight used once more by hand."""

    def __init__(self, outputs):
        super().__init__()
        self.inner = nn.Linear(5, 5)
        self.out = nn.Linear(5, outputs)

    def forward(self, x):
        h = torch.tanh(self.inner(x))
        h = torch.tanh(self.inner(h))
        return self.out(h @ self.inner.weight)


class Borrowed(nn.Module):
    """A weight that a layer applies and that another place reads behind the layer's back."""

    def __init__(self, outputs):
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.out = nn.Linear(5, outputs)

    def forward(self, x):
        return self.out(torch.tanh(self.first(x))) + self.first.weight.square().sum()


class Bare(nn.Module):
    """A parameter without a layer."""

    def __init__(self, outputs):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(5))
        self.mix = nn.Parameter(torch.randn(5, outputs))

    def forward(self, x):
        return torch.tanh(x * self.scale) @ self.mix


class Sequence(nn.Module):
    """Embedding, GRU and attention with layer norm, on integer tokens; the linear layer sees (b, t, features)."""

    def __init__(self, outputs):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.gru = nn.GRU(4, 4, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.wide = nn.Linear(4, 6)
        self.out = nn.Linear(6, outputs)

    def forward(self, x):
        h, _ = self.gru(self.embed(x))
        h = self.norm(h)
        h = h + self.attend(h, h, h, need_weights=False)[0]
        return self.out(torch.tanh(self.wide(h)).mean(1))


class TimeFirst(nn.Module):
    """A linear layer whose first axis is time, as long as the batch: the examples lie along the second."""

    def __init__(self, outputs):
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.out = nn.Linear(4, outputs)

    def forward(self, x):
        return self.out(torch.tanh(self.inner(x.transpose(0, 1))).mean(0))


class TwoInputs(nn.Module):
    """Keyword or positional inputs."""

    def __init__(self, outputs):
        super().__init__()
        self.left = nn.Linear(5, 4)
        self.right = nn.Linear(3, 4)
        self.out = nn.Linear(4, outputs)

    def forward(self, a, b):
        return self.out(torch.tanh(self.left(a) + self.right(b)))


class Functional(nn.Module):
    """Layers written as function calls, one of them with a bias that comes from elsewhere."""

    def __init__(self, outputs):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, 2, 3) / 3)
        self.weight = nn.Parameter(torch.randn(outputs, 4) / 2)

    def forward(self, x):
        h = F.conv1d(x, self.kernel, padding="same", dilation=2)
        return F.linear(torch.tanh(h).mean(-1), self.weight, bias=self.weight.new_ones(len(self.weight)))


class Unvectorised(nn.Module):
    """Python control flow on the values, which vmap cannot batch."""

    def __init__(self, outputs):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.out = nn.Linear(5, outputs)

    def forward(self, x):
        rows = [row * self.scale if float(row.sum()) > 0 else row.square() * self.scale for row in x]
        return self.out(torch.stack(rows))


def _normed(outputs):
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, stride=2, groups=2), nn.GroupNorm(2, 4), nn.Flatten(), nn.LazyLinear(outputs),
    )  # fmt: skip
    model(torch.randn(8, 2, 6, 6))  # sets the running statistics, and the lazy layer's size
    return model


def _weight_norm(outputs):
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, outputs))


def _frozen(outputs):
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, outputs))
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def _conv3d(outputs):
    return nn.Sequential(
        nn.Conv3d(1, 2, 2, dilation=(1, 2, 1), padding=(1, 0, 1)), nn.Tanh(), nn.Flatten(), nn.LazyLinear(outputs)
    )


def _conv2d(outputs):
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=2, padding_mode="circular", stride=(2, 1)), nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, (2, 3), dilation=(2, 1), groups=2, padding="valid"), nn.Tanh(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, outputs),
    )  # fmt: skip


def _transposed(outputs):
    return nn.Sequential(nn.ConvTranspose1d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.LazyLinear(outputs))


def _dropout(outputs):
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(6, outputs))


N = 5  # examples; TimeFirst's sequences are as long, on purpose

ZOO = {
    "mlp": (lambda o: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, o)), lambda g: g(N, 5)),
    "no bias": (lambda o: nn.Sequential(nn.Linear(5, 6, bias=False), nn.Tanh(), nn.Linear(6, o)), lambda g: g(N, 5)),
    "dropout": (_dropout, lambda g: g(N, 5)),
    "conv1d": (
        lambda o: nn.Sequential(nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.LazyLinear(o)),
        lambda g: g(N, 2, 7),
    ),
    "conv2d": (_conv2d, lambda g: g(N, 2, 7, 7)),
    "conv3d": (_conv3d, lambda g: g(N, 1, 3, 4, 3)),
    "transposed": (_transposed, lambda g: g(N, 2, 5)),
    "norms": (_normed, lambda g: g(N, 2, 6, 6)),
    "weight norm": (_weight_norm, lambda g: g(N, 5)),
    "frozen": (_frozen, lambda g: g(N, 5)),
    "tied": (Tied, lambda g: g(N, 5)),
    "borrowed": (Borrowed, lambda g: g(N, 5)),
    "bare": (Bare, lambda g: g(N, 5)),
    "sequence": (Sequence, lambda g: torch.arange(N * 4).reshape(N, 4) * 3 % 7),
    "time first": (TimeFirst, lambda g: g(N, N, 3)),
    "functional": (Functional, lambda g: g(N, 2, 7)),
    "unvectorised": (Unvectorised, lambda g: g(N, 5)),
    "tuple": (TwoInputs, lambda g: (g(N, 5), g(N, 3))),
    "dict": (TwoInputs, lambda g: {"a": g(N, 5), "b": g(N, 3)}),
}


def build(name, outputs, seed=0):
    """A model of the zoo with its inputs, both float64."""
    make, draw = ZOO[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make(outputs)
        x = draw(lambda *shape: torch.randn(*shape))
        first = x if isinstance(x, torch.Tensor) else None
        if first is not None:
            model(first)
    model = model.double()
    if isinstance(x, tuple):
        x = tuple(v.double() for v in x)
    elif isinstance(x, dict):
        x = {k: v.double() for k, v in x.items()}
    elif x.is_floating_point():
        x = x.double()
    return model, x
