"""Sequence outputs (b, T, V) with a mask: the likelihood factorises over positions, and nothing of size V^2 exists."""

import pytest
import torch
import torch.nn.functional as F
from oracles import naive
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fromp import (
    FROMP,
    Categorical,
    Composed,
    DataError,
    Divergence,
    FrompError,
    Hold,
    IdentityKernel,
    Remembered,
    SignGGN,
    Tokens,
    gp,
)
from fromp.derivatives.model import outputs, trainable
from fromp.foundation.examples import TensorExamples

N, T, V = 5, 4, 3


class Tagger(nn.Module):
    """A class for each word, from the word and the mean of all; it does not mask its outputs itself."""

    def __init__(self, words=7, classes=V, width=4):
        super().__init__()
        self.words, self.out = nn.Embedding(words, width), nn.Linear(2 * width, classes)

    def forward(self, input_ids, attention_mask):
        h = torch.tanh(self.words(input_ids)) * attention_mask[..., None]
        mean = h.sum(1, keepdim=True) / attention_mask.sum(1)[:, None, None]
        return {"logits": self.out(torch.cat([h, mean.expand_as(h)], -1))}


def sentences(n=N, length=T, words=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(words, (n, length), generator=generator)
    mask = (torch.arange(length) < torch.randint(1, length + 1, (n, 1), generator=generator)).long()
    y = torch.where(mask > 0, torch.randint(V, (n, length), generator=generator), -100)
    return {"input_ids": ids, "attention_mask": mask}, y


def tagger():
    torch.manual_seed(0)
    return Tagger().double()


def test_it_is_categorical_at_each_position_that_counts():
    model, (x, y) = tagger(), sentences()
    f, each = outputs(model, x), model(**x)["logits"]
    there = x["attention_mask"] > 0
    expected = F.cross_entropy(each.mT, y, ignore_index=-100, reduction="none").sum(1)
    torch.testing.assert_close(Tokens(V).nll(f, y), expected)
    torch.testing.assert_close(Tokens(V).mean(f).view(N, T, V)[there], each[there].softmax(-1))
    torch.testing.assert_close(Tokens(V).trace(f).sum(), Categorical().trace(each[there]).sum())
    entropy = torch.where(there, torch.distributions.Categorical(logits=each).entropy(), 0).sum(1)
    torch.testing.assert_close(Tokens(V).nll(f, Tokens(V).mean(f)), entropy)


def test_lambda_its_factor_and_signs():
    f = torch.randn(2, 2 * V, dtype=torch.double)
    f[1, V:] = 0  # the second position of the second example counts for nothing
    likelihood = Tokens(V)
    s = likelihood.factor(f)
    torch.testing.assert_close(s @ s.mT, likelihood.hessian(f))
    assert not likelihood.hessian(f)[1, V:].any()
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.double)] * (2 * V))
    found = torch.stack([likelihood.root_times(f, e.expand(2, -1)) for e in signs])
    torch.testing.assert_close(torch.einsum("nbc,nbd->bcd", found, found) / len(signs), likelihood.hessian(f))


class Flat(nn.Module):
    """The same as the library sees it, for the slow twin."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        f = self.model(input_ids, attention_mask)["logits"]
        return (f * attention_mask[..., None]).flatten(1)


def test_the_slow_twin():
    model, (x, y) = tagger(), sentences()
    expected = naive.ggn_diagonal(Flat(model), x, y.clamp_min(0), N, Tokens(V))
    got = gp.ggn_diagonal(model, trainable(model), TensorExamples(x, y), Tokens(V))
    torch.testing.assert_close(torch.cat([v.flatten() for v in got.values()]), expected, rtol=1e-8, atol=1e-10)
    variance = {name: 1 / (value + 0.1) for name, value in got.items()}
    k = naive.kernel(Flat(model), x, N, Tokens(V), torch.cat([v.flatten() for v in variance.values()]))
    torch.testing.assert_close(gp.kernel(model, x, Tokens(V), variance), k, rtol=1e-8, atol=1e-10)


def test_signs_are_right_on_average():
    model, (x, y) = tagger(), sentences()
    flat = [
        torch.cat([v.flatten() for v in gp.ggn_diagonal(model, trainable(model), TensorExamples(x, y), Tokens(V),
                                                        curvature=curvature, seed=seed).values()])
        for curvature, seed in [(gp.EXACT, 0), *((SignGGN(columns=4), seed) for seed in range(60))]
    ]  # fmt: skip
    error, deviation = torch.stack(flat[1:]).mean(0) - flat[0], torch.stack(flat[1:]).std(0) / 60**0.5
    assert float((error / (deviation + 1e-9)).abs().max()) < 4.5


def test_two_tasks_and_what_is_saved(tmp_path):
    """Sentences of another length in the second task; what is held is zero where it was fixed, and comes back."""
    model = Tagger()
    reg = FROMP(model, Tokens(V), memory_size=4)
    for seed, length in ((0, 4), (1, 6)):
        x, y = sentences(12, length, seed=seed)
        reg.end_task({**x, "labels": y})
    assert reg.penalty().item() == pytest.approx(0, abs=1e-9)
    with torch.no_grad():
        model.out.bias += torch.tensor([0.5, 0, 0])
    value = reg.penalty()
    value.backward()
    assert value.item() > 0
    reg.save(tmp_path / "a")
    assert FROMP.load(tmp_path / "a", model).penalty().item() == pytest.approx(value.item(), rel=1e-5)


def test_what_is_masked_is_not_held():
    model, (x, y) = Tagger(), sentences(12)
    reg = FROMP(model, Tokens(V), memory_size=12, kernel=IdentityKernel)
    reg.end_task({**x, "labels": y})
    with torch.no_grad():
        model.words.weight += torch.randn_like(model.words.weight)
    before = reg.penalty().item()
    memory = reg.memories[0].inputs
    memory["input_ids"][memory["attention_mask"] == 0] += 1  # other words where there are none
    memory["input_ids"] %= 7
    assert reg.penalty().item() == pytest.approx(before, rel=1e-6) != 0


@pytest.mark.parametrize("kind", ["fromp", "composed"])
def test_nothing_of_classes_squared_exists(kind):
    """A vocabulary of 2,000: from the scores to the penalty's gradient."""
    largest, words, length = 0, 2000, 6

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for one in out if isinstance(out, tuple | list) else [out]:
                largest = max(largest, one.untyped_storage().nbytes() // 4 if isinstance(one, torch.Tensor) else 0)
            return out

    model, (x, _) = Tagger(words, words), sentences(8, length, words)
    y = x["input_ids"].roll(-1, 1)
    if kind == "fromp":
        reg = FROMP(model, Tokens(words), memory_size=4, kernel=IdentityKernel, curvature=SignGGN())
    else:
        reg = Composed(model, Tokens(words), [Hold(Remembered(4), Divergence(), 1.0)], memory_size=4)
    with Watch():
        reg.end_task({**x, "labels": y})
        reg.penalty().backward()
    assert largest < 8 * length * words * 3 < words**2


def test_bad_input():
    model, (x, y) = Tagger(), sentences()
    with pytest.raises(DataError, match=r"Tokens\(outputs=5\) needs 5 outputs at each position, .* gives 12"):
        FROMP(model, Tokens(5), memory_size=4).end_task({**x, "labels": y})
    with pytest.raises(DataError, match=r"give integers of shape \(examples, 4\), -100"):
        FROMP(model, Tokens(V), memory_size=4).end_task({**x, "labels": y[:, :2]})
    with pytest.raises(DataError, match="label 7 is outside"):
        FROMP(model, Tokens(V), memory_size=4).end_task({**x, "labels": y.clamp_min(7)})
    with pytest.raises(DataError, match=r"use Tokens\(3\) if each has a label at 4 positions"):
        FROMP(model, Categorical(), memory_size=4).end_task({**x, "labels": y})
    with pytest.raises(FrompError, match="outputs=0"):
        Tokens(0)
