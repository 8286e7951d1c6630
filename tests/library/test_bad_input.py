"""Every wrong input gets an error that names the value, the limit and the way out, and changes nothing."""

import json

import pytest
import torch
from torch import nn

from fromp import FROMP, Bernoulli, Categorical, FrompError, Gaussian, Poisson, top
from fromp.foundation.errors import CheckpointError, DataError, DerivativeError, FrompWarning, KernelError


def network(outputs=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs))


def task(n=20, classes=4):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(1)), torch.arange(n) % classes


def frozen():
    model = network()
    model.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": -1.0}, r"tau=-1\.0 .*positive"),
        ({"tau": float("nan")}, r"tau=nan"),
        ({"jitter": -1e-3}, r"jitter=-0\.001 .*positive"),
        ({"prior_precision": 0.0}, r"prior_precision=0\.0 .*positive"),
        ({"memory_size": 0}, r"memory_size=0 .*at least 1"),
        ({"tasks_per_step": 0}, r"tasks_per_step=0 .*at least 1"),
        ({"memory_size": 20.5}, r"memory_size=20\.5 must be a whole number"),
        ({"likelihood": Categorical}, r"is not a likelihood; give one, such as Categorical\(\)"),
    ],
)
def test_settings(options, message):
    with pytest.raises(FrompError, match=message):
        FROMP(network(), **{"likelihood": Categorical(), **options})


@pytest.mark.parametrize("likelihood", [Gaussian(), Bernoulli(), Poisson()])
def test_labels_that_do_not_fit_the_outputs(likelihood):
    assert likelihood.nll(torch.zeros(6, 1), torch.ones(6)).shape == (6,)
    for f, y in [((2, 3), (3, 2)), ((6, 1), (1, 6)), ((3, 2), (6,))]:
        with pytest.raises(DataError, match="give that shape"):
            likelihood.nll(torch.zeros(f), torch.ones(y))


def test_a_model_without_trainable_parameters():
    with pytest.raises(DerivativeError, match="none of the model's 4 parameters is trainable; set requires_grad"):
        FROMP(frozen(), Categorical())
    with pytest.raises(DerivativeError, match="0 parameters"):
        FROMP(nn.Flatten(), Categorical())


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()


class NoDerivative(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.out(Broken.apply(self.first(x)))


class Rounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)

    def forward(self, x):
        return self.first(x).argmax(1, keepdim=True).expand(-1, 4).float()


class RootAtZero(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(3, 4))

    def forward(self, x):
        return (x @ self.scale).abs().sqrt()


class Sequenced(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)

    def forward(self, x):
        return self.first(x)[None]


X, Y = task()
NAN_INPUT = X.clone()
NAN_INPUT[7, 1] = float("nan")


@pytest.mark.parametrize(
    ("model", "likelihood", "data", "options", "kind", "message"),
    [
        (network, Categorical(), (X, Y), {"head": [0, 9]}, DataError, r"head index 9 .*4 outputs; use 0 to 3"),
        (network, Categorical(), (X, Y), {"head": [-1, 0]}, DataError, r"head index -1"),
        (network, Categorical(), (X, Y), {"head": []}, DataError, r"head=\[\] has no outputs"),
        (network, Categorical(), (X, Y), {"head": [1, 1]}, DataError, r"names an output twice"),
        (network, Categorical(), (X, Y), {"head": [0, 1]}, DataError, r"label 3 .*head of 2 outputs.*0 to 1"),
        (network, Categorical(), (X, Y - 1), {}, DataError, r"label -1 .*0 to 3"),
        (network, Categorical(), (X, Y.float()), {}, DataError, r"torch.float32.*give integers"),
        (network, Categorical(), (X, Y), {"head": [0]}, DataError, r"at least 2 outputs.*Bernoulli"),
        (lambda: network(1), Bernoulli(), (X, Y), {}, DataError, r"label 2 is neither 0 nor 1"),
        (network, Gaussian(), (X, Y.float()), {}, DataError, r"shape \(20,\).*needs \(examples, 4\)"),
        (lambda: network(1), Gaussian(), (X, X[:, 0] / 0), {}, DataError, r"not finite"),
        (lambda: network(1), Poisson(), (X, -Y.float()), {}, DataError, r"label -3\.0 is negative"),
        (network, Categorical(), (X[:0], Y[:0]), {}, DataError, r"no examples"),
        (network, Categorical(), (X, Y[:5]), {}, DataError, r"20 inputs but 5 labels"),
        (network, Categorical(), (NAN_INPUT, Y), {}, DataError, r"input 7 holds NaN"),
        (network, Categorical(), (X, Y), {"scores": torch.ones(3)}, DataError, r"one number for each of the 20"),
        (network, Categorical(), (X, Y), {"scores": torch.full((20,), float("nan"))}, DataError, r"20 scores are NaN"),
        (network, Categorical(), iter([]), {}, DataError, r"can only be gone through in order"),
        (network, Categorical(), {"x": X, "y": Y}, {}, DataError, r"dict with 'x', 'y' holds no labels"),
        (network, Categorical(), ({1, 2}, Y), {}, DataError, r"inputs of type set are not supported"),
        (network, Categorical(), (X, Y), {"scores": [1.0, 2.0]}, DataError, r"one number for each of the 20"),
        (network, Categorical(), (X, Y, Y), {}, DataError, r"a tuple of 3 is not labelled data"),
        (NoDerivative, Categorical(), (X, Y), {}, DerivativeError, r"cannot be differentiated.*Freeze"),
        (Rounded, Categorical(), (X, Y), {}, DerivativeError, r"do not depend differentiably.*argmax"),
        (RootAtZero, Categorical(), (X, Y), {}, DerivativeError, r"'scale' is not finite.*sqrt"),
        (Sequenced, Categorical(), (X, Y), {}, DataError, r"gave a tensor of shape \(1, \d+, 4\).*\(batch, outputs\)"),
    ],
)
def test_a_task_that_cannot_be_remembered(model, likelihood, data, options, kind, message):
    reg = FROMP(model(), likelihood, memory_size=8)
    draws = reg._generator.get_state()
    with pytest.raises(kind, match=message):
        reg.end_task(data, **options)
    assert reg.memories == ()
    assert reg.precision == {}
    assert reg.penalty().item() == 0
    assert torch.equal(reg._generator.get_state(), draws)


def test_fewer_points_than_classes():
    reg = FROMP(network(), Categorical(), memory_size=3)
    with pytest.raises(
        DataError, match="memory_size=3 is smaller than the task's 4 classes; use at least 4, or select"
    ):
        reg.end_task((X, Y))
    reg.select = top
    reg.end_task((X, Y))
    assert len(reg.memories[0]) == 3


def test_more_points_than_the_task_has():
    reg = FROMP(network(), Categorical(), memory_size=8, jitter=1e-2)
    reg.end_task((X, Y))
    with pytest.warns(
        FrompWarning, match="memory_size=8 is larger than the task's 5 examples; all of them are kept"
    ) as w:
        reg.end_task((X[:5], Y[:5]))
    assert w[0].filename == __file__
    assert [len(memory) for memory in reg.memories] == [8, 5]
    assert reg.memory_size == 8
    reg.penalty().backward()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_training_that_has_diverged_altogether(value):
    model = network()
    reg = FROMP(model, Categorical(), memory_size=8)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(value)
    with pytest.raises(DataError, match=r"outputs at example 0 are NaN or infinite.*diverged"):
        reg.end_task((X, Y))


def test_inputs_of_another_kind():
    reg = FROMP(network(), Categorical(), memory_size=8)
    with pytest.raises(DataError, match="inputs of type set are not supported"):
        reg.predict({1, 2})
    with pytest.raises(DataError, match="input 7 holds NaN"):
        reg.predict(NAN_INPUT)


def test_outputs_that_are_not_finite_leave_the_past_alone():
    model = network()
    reg = FROMP(model, Categorical(), memory_size=8)
    reg.end_task((X, Y))
    before = {name: value.clone() for name, value in reg.precision.items()}
    with torch.no_grad():
        model[2].bias.fill_(float("inf"))
    with pytest.raises(DataError, match=r"outputs at example 0 are NaN or infinite.*diverged"):
        reg.end_task((X, Y))
    assert len(reg.memories) == 1
    assert all(torch.equal(reg.precision[name], value) for name, value in before.items())


def test_a_kernel_that_is_not_positive_definite():
    reg = FROMP(network(), Categorical(), memory_size=8, jitter=0.0)
    twice = torch.cat([X[:4]] * 5)  # the same points five times: a singular kernel
    with pytest.raises(KernelError, match=r"output 0 is not positive definite: .*jitter=0 .*use a jitter"):
        reg.end_task((twice, Y))
    assert reg.memories == ()


def test_predicting_with_a_wrong_head():
    reg = FROMP(network(), Categorical(), memory_size=8)
    with pytest.raises(DataError, match="head index 4"):
        reg.predict(X, head=[3, 4])


@pytest.fixture
def saved(tmp_path):
    model = network()
    reg = FROMP(model, Categorical(), memory_size=8)
    reg.end_task((X, Y))
    reg.save(tmp_path / "memory")
    return model, tmp_path / "memory"


def test_a_changed_model_at_load(saved):
    _, path = saved
    with pytest.raises(CheckpointError, match=r"'2\.weight' is \[3, 5\], in the remembered model it was \[4, 5\]"):
        FROMP.load(path, network(outputs=3))
    with pytest.raises(CheckpointError, match=r"no parameter '2\.weight'"):
        FROMP.load(path, nn.Sequential(nn.Linear(3, 5)))
    wider = nn.Sequential(*network(), nn.Linear(4, 9))
    with pytest.raises(CheckpointError, match="saved with 4 outputs, the model gives 9 for it"):
        FROMP.load(path, wider)


def test_a_missing_folder(tmp_path):
    with pytest.raises(CheckpointError, match=r"no manifest\.json"):
        FROMP.load(tmp_path / "nowhere", network())


@pytest.mark.parametrize("pattern", ["tensors-*", "state-*", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_folder(saved, pattern, damage):
    model, path = saved
    (file,) = path.glob(pattern)
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 0x20
        file.write_bytes(data)
    elif damage == "truncate":
        file.write_bytes(data[: len(data) // 2])
    else:
        file.unlink()
    with pytest.raises(CheckpointError, match=r"damaged|cannot be|does not name|no manifest|format|holds"):
        FROMP.load(path, model)


def test_a_folder_of_another_kind(saved):
    model, path = saved
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "kind": "run"}))
    with pytest.raises(CheckpointError, match="holds 'run', not 'fromp'"):
        FROMP.load(path, model)
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(CheckpointError, match="has format 99, this version of fromp reads 2"):
        FROMP.load(path, model)


def test_text_is_named_as_text():
    reg = FROMP(network(), Categorical())
    with pytest.raises(DataError, match=r"a list of 20 holds text; .* encode it first"):
        reg.end_task(["a word"] * 20, task()[1])
    assert reg.memories == ()
