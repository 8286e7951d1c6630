"""Which weights of common architectures are differentiated at speed, and that all of them are right."""

import pytest
import torch
import torch.nn.functional as F
from oracles import naive
from torch import nn

from fromp import Categorical, gp
from fromp.derivatives.budget import bytes_per_example
from fromp.derivatives.model import detached, evaluating, trainable
from fromp.derivatives.tape import Tape
from fromp.foundation.examples import TensorExamples

N, T, E = 4, 6, 8  # examples, tokens, width
WORDS = torch.tensor([[1, 2, 1, 3, 0, 0], [4, 4, 4, 4, 4, 4], [2, 5, 6, 0, 0, 0], [9, 1, 8, 2, 7, 1]])


def tokens():
    """Words that repeat within an example and between examples, and padding."""
    return WORDS.clone()


def images():
    return torch.randn(N, 3, 8, 8)


def features():
    return torch.randn(N, 5)


class Encoder(nn.Module):
    """`nn.TransformerEncoder` on padded words with learned positions."""

    def __init__(self, batch_first=True, pre=False):
        super().__init__()
        self.batch_first = batch_first
        self.words, self.places = nn.Embedding(10, E, padding_idx=0), nn.Parameter(torch.randn(T, E))
        layer = nn.TransformerEncoderLayer(E, 2, 12, batch_first=batch_first, norm_first=pre)
        self.encoder, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(E, 3)

    def forward(self, x):
        h = self.words(x) + self.places[: x.shape[1]]
        h = h if self.batch_first else h.transpose(0, 1)
        h = self.encoder(h, src_key_padding_mask=x == 0)
        return self.out(h.mean(1 if self.batch_first else 0))


class Bert(nn.Module):
    """As in most libraries: three embeddings summed, own attention, linear layers at every position."""

    def __init__(self):
        super().__init__()
        self.words, self.kinds, self.places = nn.Embedding(10, E, 0), nn.Embedding(2, E), nn.Embedding(T, E)
        self.norm, self.query, self.key, self.value = nn.LayerNorm(E), *(nn.Linear(E, E) for _ in range(3))
        self.mixed, self.out = nn.Linear(E, E), nn.Linear(E, 3)

    def forward(self, x):
        places = torch.arange(x.shape[1])[None]
        h = self.norm(self.words(x) + self.kinds(torch.zeros_like(x)) + self.places(places))
        q, k, v = (layer(h).view(len(x), -1, 2, E // 2).transpose(1, 2) for layer in (self.query, self.key, self.value))
        h = h + self.mixed(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(h.shape))
        return self.out(torch.tanh(h[:, 0]))


class Decoder(nn.Module):
    """Cross attention, whose projections are parts of one weight, and RMS norms with a scale by hand."""

    def __init__(self):
        super().__init__()
        self.words, self.scale, self.norm = nn.Embedding(10, E), nn.Parameter(torch.rand(E)), nn.RMSNorm(E)
        self.query, self.attend = nn.Parameter(torch.randn(1, 2, E)), nn.MultiheadAttention(E, 2, batch_first=True)
        self.out = nn.Linear(E, 3)

    def forward(self, x):
        h = self.words(x)
        h = self.scale * h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-5)
        h, _ = self.attend(self.query.expand(len(x), -1, -1), h, h)
        return self.out(self.norm(h).sum(1))


class ViT(nn.Module):
    """Patches, a class token, learned positions, and a layer scale."""

    def __init__(self):
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, E, 4, stride=4), nn.Parameter(torch.randn(1, 1, E))
        self.places, self.scale = nn.Parameter(torch.randn(1, 5, E)), nn.Parameter(torch.rand(E))
        self.norm, self.mlp = nn.LayerNorm(E), nn.Sequential(nn.Linear(E, 12), nn.GELU(), nn.Linear(12, E))
        self.out = nn.Linear(E, 3)

    def forward(self, x):
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.places
        h = h + self.scale * self.mlp(self.norm(h))
        return self.out(h[:, 0])


class Residual(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.one, self.two, self.relu = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.two(self.second(self.relu(self.one(self.first(x))))) + x)


def resnet():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), Residual(),
        nn.Conv2d(4, 4, 3, groups=4), nn.GroupNorm(2, 4), nn.PReLU(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.BatchNorm1d(4), nn.Linear(4, 3),
    )  # fmt: skip
    model(torch.randn(16, 3, 8, 8))  # the running statistics
    return model


class LoRA(nn.Module):
    """A frozen layer with a low-rank update beside it, and one whose update is added to the weight."""

    def __init__(self):
        super().__init__()
        self.inner, self.other = nn.Linear(5, 5).requires_grad_(False), nn.Linear(5, 5).requires_grad_(False)
        self.a, self.b, self.c, self.d = (nn.Parameter(torch.randn(*s)) for s in ((5, 2), (2, 5), (5, 2), (2, 5)))
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        h = torch.tanh(self.inner(x) + x @ self.a @ self.b)
        return self.out(torch.tanh(F.linear(h, self.other.weight + self.c @ self.d, self.other.bias)))


class Flattened(nn.Module):
    """Positions flattened into the batch, the examples slowest, then fastest."""

    def __init__(self):
        super().__init__()
        self.words, self.one, self.two = nn.Embedding(10, E), nn.Linear(E, E), nn.Linear(E, E)
        self.out = nn.Linear(E, 3)

    def forward(self, x):
        h = torch.tanh(self.one(self.words(x.flatten()))).view(*x.shape, E)
        h = torch.tanh(self.two(h.transpose(0, 1).reshape(-1, E))).view(x.shape[1], len(x), E)
        return self.out(h.mean(0))


class Shared(nn.Module):
    """One layer at two depths, and the same words in two places."""

    def __init__(self):
        super().__init__()
        self.words, self.inner, self.out = nn.Embedding(10, E), nn.Linear(E, E), nn.Linear(E, 3)

    def forward(self, x):
        h = self.words(x[:, :3]).mean(1) - self.words(x[:, 3:]).square().mean(1)
        return self.out(torch.tanh(self.inner(torch.tanh(self.inner(h)))))


class TimeFirst(nn.Module):
    """As many steps of time as examples, and time in front."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.inner(x.transpose(0, 1))).square().mean(0))


class Convolved(nn.Module):
    """Pictures of each example flattened into the batch."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.norm(self.conv(x.flatten(0, 1))).square().mean((-2, -1))
        return self.out(h.view(len(x), -1, 4).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.lstm, self.out = nn.Embedding(10, E), nn.LSTM(E, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.lstm(self.words(x))[0][:, -1])


COMMON = {
    "encoder": (Encoder, tokens),
    "encoder, time first": (lambda: Encoder(batch_first=False), tokens),
    "encoder, norms first": (lambda: Encoder(pre=True), tokens),
    "bert": (Bert, tokens),
    "decoder": (Decoder, tokens),
    "vit": (ViT, images),
    "resnet": (resnet, images),
    "lora": (LoRA, features),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 3)),
        features,
    ),
    "flattened": (Flattened, tokens),
    "shared": (Shared, tokens),
    "time first": (TimeFirst, lambda: torch.randn(N, N, 3)),
    "convolved": (Convolved, lambda: torch.randn(N, 2, 3, 6, 6)),
}


def built(make, draw):
    torch.manual_seed(0)
    model, x = make().double().eval(), draw()
    return model, x.double() if x.is_floating_point() else x


def taped(model, x):
    weights = detached(model, trainable(model))
    with evaluating(model):
        return Tape(model, weights, x, None)


@pytest.mark.parametrize("name", COMMON)
def test_no_weight_of_a_common_architecture_is_slow(name):
    model, x = built(*COMMON[name])
    assert taped(model, x).others == ()


def test_recurrent_layers_and_transposed_convolutions_are_slow():
    """They run as one function of torch's, whose inner steps nothing sees."""
    assert taped(*built(Recurrent, tokens)).others == tuple(
        f"lstm.{name}" for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    )
    transposed = nn.Sequential(nn.ConvTranspose2d(3, 2, 3), nn.Flatten(), nn.Linear(200, 3))
    assert taped(*built(lambda: transposed, images)).others == ("0.weight", "0.bias")


@pytest.mark.parametrize("name", COMMON)
def test_common_architectures_equal_their_slow_twins(name):
    model, x = built(*COMMON[name])
    likelihood = Categorical()
    y, names = torch.arange(N) % 3, trainable(model)
    expected = naive.ggn_diagonal(model, x, y, N, likelihood)
    got = gp.ggn_diagonal(model, names, TensorExamples(x, y), likelihood)
    torch.testing.assert_close(flat(got), expected, rtol=1e-8, atol=1e-10)
    variance = {n: 1 / (value + 0.1) for n, value in got.items()}
    k = naive.kernel(model, x, N, likelihood, flat(variance))
    torch.testing.assert_close(gp.kernel(model, x, likelihood, variance), k, rtol=1e-8, atol=1e-10)
    # Two parts, so that the gradients on the two sides of a block are not the same ones.
    few = 8 * max(1, cost(model, x, variance))
    torch.testing.assert_close(gp.kernel(model, x, likelihood, variance, None, few), k, rtol=1e-8, atol=1e-10)
    found = gp.predict(model, x, likelihood, variance).variance - likelihood.noise(model(x).detach())
    torch.testing.assert_close(found, torch.einsum("cii->ic", k), rtol=1e-8, atol=1e-10)


def flat(by_name):
    return torch.cat([value.flatten() for value in by_name.values()])


def cost(model, x, variance):
    with evaluating(model):
        return bytes_per_example(model, detached(model, tuple(variance)), x[:2], None) // 4


def test_where_the_examples_lie_is_found_out_and_not_guessed():
    """A layer of which it cannot be told is slow: here either axis would fit what reaches the outputs."""

    class Diagonal(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.out = nn.Linear(3, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.out(torch.tanh(self.inner(x))[torch.arange(len(x)), x[..., 0].argmax(1)])

    model, x = built(Diagonal, lambda: torch.randn(N, N, 3) + 9 * torch.eye(N)[..., None])
    tape = taped(model, x)
    assert tape.others == ("inner.weight", "inner.bias")
    y = torch.arange(N) % 3
    got = gp.ggn_diagonal(model, trainable(model), TensorExamples(x, y), Categorical())
    torch.testing.assert_close(flat(got), naive.ggn_diagonal(model, x, y, N, Categorical()), rtol=1e-8, atol=1e-10)


def test_a_position_written_on_in_place():
    """x += p on a view moves the history of the whole; on a tensor of its own it does not."""

    class InPlace(nn.Module):
        def __init__(self, view):
            super().__init__()
            self.view, self.inner, self.shift = view, nn.Linear(5, 4), nn.Parameter(torch.randn(4))
            self.out = nn.Linear(4, 3)

        def forward(self, x):
            h = self.inner(x)
            part = h[:, :] if self.view else h
            part += self.shift
            return self.out(h.relu_())

    for view in (False, True):
        model, x = built(lambda view=view: InPlace(view), features)
        assert ("shift" in taped(model, x).others) == view
        y = torch.arange(N) % 3
        got = gp.ggn_diagonal(model, trainable(model), TensorExamples(x, y), Categorical())
        torch.testing.assert_close(flat(got), naive.ggn_diagonal(model, x, y, N, Categorical()), rtol=1e-8, atol=1e-10)
