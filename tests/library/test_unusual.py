"""Models, data and circumstances outside the zoo: the right result or a clear error, never a wrong number."""

import contextlib
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, Subset, SubsetRandomSampler, TensorDataset

from fromp import FROMP, Categorical, FrompError, IdentityKernel, gp, memorability
from fromp.derivatives.budget import bytes_per_example
from fromp.derivatives.model import detached, evaluating
from fromp.foundation.errors import CheckpointError
from fromp.foundation.examples import TensorExamples
from fromp.gp import ggn_diagonal
from fromp.lab.cli import main

N = 5


def network(outputs=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, outputs))


def task(n=40, classes=4):
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(1)), torch.arange(n) % classes


def jacobian(model, x, function=lambda f: f):
    """d function(f(x_i))_c / d w of the model itself, an example at a time and without `functional_call`: (i, c, w)."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for i in range(len(x)):
        out = function(model(x[i : i + 1]))[0]
        row = []
        for value in out:
            g = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
            dense = [torch.zeros_like(p) if v is None else v for v, p in zip(g, parameters, strict=True)]
            row.append(torch.cat([(v.to_dense() if v.is_sparse else v).flatten() for v in dense]))
        rows.append(torch.stack(row))
    return torch.stack(rows)


class Scaled(nn.Module):
    """A temperature: a parameter without axes."""

    def __init__(self):
        super().__init__()
        self.inner, self.temperature = nn.Linear(5, 5), nn.Parameter(torch.tensor(1.3))

    def forward(self, x):
        return self.inner(x) * self.temperature


class Prototypes(nn.Module):
    """A linear layer on a table of as many rows as there are examples: its first axis is not the examples'."""

    def __init__(self):
        super().__init__()
        self.inner, self.project = nn.Linear(5, 3), nn.Linear(6, 3)
        self.register_buffer("table", torch.randn(N, 6))

    def forward(self, x):
        return torch.tanh(self.inner(x)) @ torch.tanh(self.project(self.table)).T


class Sorted(nn.Module):
    """Examples in another order inside, as code for sequences of different lengths has them."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(5, 6), nn.Linear(6, 5)

    def forward(self, x):
        order = x[:, 0].argsort()
        return self.out(torch.tanh(self.inner(x[order])))[order.argsort()]


@torch.jit.script
def scripted(x: torch.Tensor, w: torch.Tensor):
    return torch.tanh(x @ w.t())


class Script(nn.Module):
    """A weight that a layer applies, and a scripted function once more."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(5, 5, bias=False), nn.Linear(5, 5)

    def forward(self, x):
        return self.out(scripted(torch.tanh(self.inner(x)), self.inner.weight))


class Listed(nn.Module):
    """A weight reached through a plain list, which `functional_call` does not replace."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(5, 5), nn.Linear(5, 5)
        self.weights = [self.inner.weight]

    def forward(self, x):
        return self.out(torch.tanh(x @ self.weights[0].T))


class Vector(nn.Module):
    """`F.linear` with a vector for a weight."""

    def __init__(self):
        super().__init__()
        self.vector, self.out = nn.Parameter(torch.randn(5)), nn.Linear(1, 5)

    def forward(self, x):
        return self.out(torch.tanh(F.linear(x, self.vector))[:, None])


class Tokens(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 4, sparse=True), nn.Linear(4, 5)

    def forward(self, x):
        return self.out(torch.tanh(self.embed((x * 10).long().remainder(7))).mean(1))


def test_a_weight_kept_in_a_list_is_named():
    """Swapped weights cannot reach it, so its share would be missing."""
    with pytest.raises(FrompError, match="kept outside its module"):
        FROMP(Listed(), Categorical(), memory_size=5, jitter=1e-2).end_task((torch.randn(20, 5), torch.arange(20) % 5))


@pytest.mark.parametrize("make", [Scaled, Prototypes, Sorted, Script, Vector, Tokens])
def test_curvature_kernel_and_predictive(make):
    torch.manual_seed(0)
    model, likelihood = make().double().eval(), Categorical()
    x, y = torch.randn(N, 5, dtype=torch.double), torch.arange(N)
    j, slopes = jacobian(model, x), jacobian(model, x, likelihood.mean)
    with torch.no_grad():
        f = model(x)
    expected = torch.einsum("icw,icd,idw->w", j, likelihood.hessian(f), j)
    names = tuple(name for name, _ in model.named_parameters())
    got = ggn_diagonal(model, names, TensorExamples(x, y), likelihood)
    variance = {name: 1 / (value + 0.1) for name, value in got.items()}
    k = gp.kernel(model, x, likelihood, variance)
    prediction = gp.predict(model, x, likelihood, variance)
    torch.testing.assert_close(torch.cat([value.flatten() for value in got.values()]), expected)
    kernel = torch.einsum("icw,w,jcw->cij", slopes, 1 / (expected + 0.1), slopes)
    torch.testing.assert_close(k, kernel)
    torch.testing.assert_close(prediction.variance, torch.einsum("cii->ic", kernel) + likelihood.noise(f))


class SqueezedConv(nn.Module):
    """Fine on every batch of more than one example."""

    def __init__(self):
        super().__init__()
        self.inner, self.shift, self.out = nn.Conv1d(1, 6, 5), nn.Parameter(torch.zeros(6)), nn.Linear(6, 4)

    def forward(self, x):
        return self.out(torch.tanh(self.inner(x[:, None]).squeeze() + self.shift))


def test_the_kernel_between_parts_that_a_layer_sees_whole_and_not():
    """An expert gets every example of one part, and some of the other: the same K as of all examples together."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            first = x[:, 0] > 0
            f = x.new_zeros(len(x), 2)
            f[first] = self.one(x[first])
            f[~first] = self.other(x[~first])
            return f

    torch.manual_seed(0)
    model, x = Experts().double(), torch.randn(8, 3, dtype=torch.double)
    x[:, 0] = torch.tensor([1.0, 2, 3, 1, 2, -1, -2, 1])  # the first four for one expert, the others for both
    variance = {name: torch.rand_like(w).detach() for name, w in model.named_parameters()}
    whole = gp.kernel(model, x, Categorical(), variance)
    few = bytes_per_example(model, detached(model, tuple(variance)), x[:2], None)
    torch.testing.assert_close(gp.kernel(model, x, Categorical(), variance, memory_budget=8 * few), whole)


def test_a_model_that_squeezes_a_single_example_away(tmp_path):
    reg = FROMP(SqueezedConv(), Categorical(), memory_size=8, jitter=1e-2)
    reg.end_task(task())
    reg.save(tmp_path)


class BatchStatistics(nn.Module):
    """What it says of one example depends on the others."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, x):
        h = self.inner(x)
        return self.out(torch.tanh((h - h.mean(0)) / (h.var(0, unbiased=False) + 0.1).sqrt()))


def test_a_model_whose_examples_depend_on_each_other_is_refused():
    with pytest.raises(FrompError, match="depend"):
        FROMP(BatchStatistics(), Categorical(), memory_size=8, jitter=1e-2).end_task(task())


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        x -= 0.1
        return self.inner(x)


def test_a_model_that_writes_on_its_inputs():
    """Refused, before it has written on the user's own tensor."""
    x, y = task()
    given = x.clone()
    reg = FROMP(InPlace(), Categorical(), memory_size=8, jitter=1e-2)
    with pytest.raises(FrompError, match="writes on its inputs"):
        reg.end_task((given, y))
    assert torch.equal(given, x)


class Padded(nn.Module):
    """Without gradients, PyTorch's fast path makes padded positions zero; with them it does not."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encode, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(8, 4)

    def forward(self, x, padding):
        return self.out(self.encode(x, src_key_padding_mask=padding).mean(1))


def test_the_means_are_fixed_on_the_path_that_the_penalty_takes():
    torch.manual_seed(0)
    x, padding = torch.randn(20, 5, 8), torch.arange(5)[None] >= (torch.arange(20) % 4 + 2)[:, None]
    reg = FROMP(Padded(), Categorical(), memory_size=8, jitter=1e-2)
    reg.end_task(({"x": x, "padding": padding}, torch.arange(20) % 4))
    assert reg.penalty().item() == pytest.approx(0, abs=1e-8)
    with torch.no_grad():
        assert reg.penalty().item() == pytest.approx(0, abs=1e-8)
    assert reg.drift() == pytest.approx([0], abs=1e-6)


def test_second_derivatives_of_the_penalty():
    """Hessian-vector products are what second-order optimisers ask for."""
    x, y = task()
    model = network().double()
    reg = FROMP(model, Categorical(), tau=1.0, memory_size=8, jitter=1e-2, kernel=IdentityKernel)
    reg.end_task((x.double(), y))
    memory, parameters = reg.memories[0], list(model.parameters())
    with torch.no_grad():
        before = model(memory.inputs).softmax(-1)
        for p in parameters:
            p += 0.1

    def product(loss):
        first = torch.autograd.grad(loss, parameters, create_graph=True)
        second = torch.autograd.grad(sum(g.sum() for g in first), parameters)
        return torch.cat([g.flatten() for g in second])

    expected = product(0.5 * (model(memory.inputs).softmax(-1) - before).square().sum())
    torch.testing.assert_close(product(reg.penalty()), expected)


def test_a_loader_that_takes_only_some_of_its_dataset():
    x, y = task()
    reg = FROMP(network(), Categorical(), memory_size=8)
    chosen = (y < 2).nonzero().flatten().tolist()
    with pytest.raises(FrompError, match=r"SubsetRandomSampler takes only some .* torch.utils.data.Subset"):
        reg.end_task(DataLoader(TensorDataset(x, y), batch_size=4, sampler=SubsetRandomSampler(chosen)))
    with pytest.raises(FrompError, match=r"list takes only some .* torch.utils.data.Subset"):
        reg.end_task(DataLoader(TensorDataset(x, y), batch_sampler=[chosen[:2], chosen[2:4]]))
    batches = BatchSampler(SubsetRandomSampler(chosen), batch_size=4, drop_last=False)
    with pytest.raises(FrompError, match=r"SubsetRandomSampler takes only some"):
        reg.end_task(DataLoader(TensorDataset(x, y), batch_sampler=batches))
    whole = BatchSampler(SequentialSampler(y), batch_size=4, drop_last=True)
    reg.end_task(DataLoader(TensorDataset(x, y), batch_sampler=whole))
    assert set(reg.memories[-1].labels.tolist()) == {0, 1, 2, 3}
    reg = FROMP(network(), Categorical(), memory_size=8)
    reg.end_task(DataLoader(Subset(TensorDataset(x, y), chosen), batch_size=4, shuffle=True))
    assert set(reg.memories[0].labels.tolist()) == {0, 1}


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: DataLoader(d, 8, shuffle=True)], ids=["dataset", "loader"])
def test_a_dataset_leaves_the_random_state_alone(wrap):
    reg = FROMP(network(), Categorical(), memory_size=8)
    before = torch.get_rng_state()
    reg.end_task(wrap(TensorDataset(*task())))
    assert torch.equal(torch.get_rng_state(), before)


def test_scores_are_kept_without_their_graph():
    model, (x, y) = network(), task()
    reg = FROMP(model, Categorical(), memory_size=8)
    reg.end_task((x, y), scores=model(x).sum(1))
    assert not reg.memories[0].scores.requires_grad


def test_many_classes_stay_within_the_budget():
    """Lambda and its factor are classes x classes for each example: they count too."""
    script = """
import torch
from torch import nn
from fromp import FROMP, Categorical, IdentityKernel
from fromp.lab.bench.memory import _peak
torch.set_num_threads(1)
model, x, y = nn.Linear(10, 200), torch.randn(2000, 10), torch.arange(2000) % 200
warm = FROMP(nn.Linear(10, 2), Categorical(), memory_size=2, kernel=IdentityKernel)
warm.end_task((x[:4], y[:4] % 2))  # what is imported on first use is not counted
reg = FROMP(model, Categorical(), memory_size=200, kernel=IdentityKernel, memory_budget=64 * 2**20)
before = _peak(reset=True)
reg.end_task((x, y))
print((_peak() - before) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 6 * 64  # all examples at once would take about 1000


def test_the_prior_is_kept_once():
    """K^-1 is the largest thing kept: not once for each task and again for the blocks."""
    reg = FROMP(nn.Linear(5, 4), Categorical(), memory_size=40, jitter=1e-2)
    for _ in range(3):
        reg.end_task(task())
    gc.collect()
    storages = {
        kept.untyped_storage().data_ptr(): kept.untyped_storage().nbytes()
        for part in [*reg._prior.anchors, *reg._prior.blocks]
        for kept in part.kernel.state_dict().values()
    }
    assert sum(storages.values()) == 3 * 4 * 40 * 40 * 4


def test_the_kernel_does_not_depend_on_the_order_of_hashes():
    script = """
import hashlib, torch
from torch import nn
from fromp import FROMP, Categorical
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Tanh(), nn.Conv1d(4, 4, 3), nn.Flatten(), nn.Linear(16, 4)).double()
reg = FROMP(model, Categorical(), memory_size=20, jitter=1e-6)
reg.end_task((torch.randn(40, 2, 8).double(), torch.arange(40) % 4))
print(hashlib.sha256(reg.state_dict()["tasks"][0]["kernel"]["inverse"].numpy().tobytes()).hexdigest())
"""
    seen = set()
    for number in "0123":
        environment = {**os.environ, "PYTHONHASHSEED": number}
        command = [sys.executable, "-c", script]
        seen.add(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    assert len(seen) == 1


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(5, 6), nn.Linear(6, 4).double()

    def forward(self, x):
        return self.out(torch.tanh(self.inner(x)).double())


def test_weights_of_two_types():
    reg = FROMP(Mixed(), Categorical(), memory_size=8, jitter=1e-2)
    reg.end_task(task())
    assert reg.penalty().item() == pytest.approx(0, abs=1e-12)


def test_a_model_that_has_changed_is_named():
    """Another type, more outputs, other parameters: an error of ours, at the next call that meets it."""
    x, y = task()

    def taught():
        model = network()
        reg = FROMP(model, Categorical(), memory_size=8, jitter=1e-2)
        reg.end_task((x, y))
        return model, reg

    model, reg = taught()
    model[2] = nn.Linear(6, 6)
    with pytest.raises(FrompError, match="outputs"):
        reg.penalty()
    with pytest.raises(FrompError, match=r"2\.weight"):
        reg.end_task((x, y), head=[0, 1, 2, 3])
    model, reg = taught()
    model[0] = nn.Sequential(model[0])
    with pytest.raises(FrompError, match=r"0\.weight"):
        reg.end_task((x, y))


def test_a_precision_is_not_stretched_over_a_grown_head():
    x, y = task(classes=2)
    model = network(outputs=1)
    from fromp import Bernoulli

    reg = FROMP(model, Bernoulli(), memory_size=8, jitter=1e-2)
    reg.end_task((x, y), head=[0])
    model[2] = nn.Linear(6, 3)
    with pytest.raises(FrompError, match=r"2\.weight"):
        reg.end_task((x, y), head=[1])


def test_a_model_of_another_type_at_load(tmp_path):
    model = network()
    reg = FROMP(model, Categorical(), memory_size=8, jitter=1e-2)
    reg.end_task(task())
    reg.save(tmp_path)
    with torch.no_grad():
        model[0].weight += 0.1
    expected = reg.penalty().item()
    again = FROMP.load(tmp_path, model.double())
    assert again.memories[0].inputs.dtype == again.penalty().dtype == torch.float64
    assert again.penalty().item() == pytest.approx(expected, rel=1e-3)


def test_a_score_without_a_name_can_be_saved(tmp_path):
    FROMP(network(), Categorical(), score=functools.partial(memorability)).save(tmp_path)
    with pytest.raises(CheckpointError, match="give it again"):
        FROMP.load(tmp_path, network())
    FROMP.load(tmp_path, network(), score=memorability)


def test_a_manifest_with_a_list_of_files(tmp_path):
    FROMP(network(), Categorical()).save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "files": []}))
    with pytest.raises(CheckpointError, match="does not name"):
        FROMP.load(tmp_path, network())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory", "0"], "memory must be at least 1 (got 0)"),
        (["--out", "file"], "file"),
        (["--out", "file/below"], "file"),
        (["--seed", str(10**30)], "seed"),
    ],
)
def test_arguments_that_end_in_an_error_of_ours(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(["run", "toy", "--tasks", "1", "--epochs", "1", "--quiet", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_no_penalty_still_learns_when_gradients_are_clipped(tmp_path):
    arguments = ["run", "toy", "--tasks", "1", "--epochs", "2", "--quiet", "--out", str(tmp_path)]
    assert main([*arguments, "--set", "tau=0", "--set", "clip_norm=1"]) == 0
    assert json.loads((tmp_path / "results.json").read_text())["runs"][0]["average_accuracy"] > 0.9


def test_a_scripted_part_is_evaluated_too():
    """It keeps its mode elsewhere than other modules do."""
    model = nn.Sequential(nn.Linear(5, 50), torch.jit.script(nn.Dropout(0.5)), nn.Linear(50, 4))
    x, _ = task()
    with evaluating(model):
        assert torch.equal(model(x), model(x))
    assert all(module.training for module in model.modules())
    assert not torch.equal(model(x), model(x))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_terminating_several_jobs_leaves_no_process_behind(tmp_path, number):
    """Orphans would go on writing into a folder that the next run believes to be its own."""
    command = [sys.executable, "-m", "fromp", "run", "toy", "--seeds", "2", "--jobs", "2", "--epochs", "500"]
    command += ["--quiet", "--checkpoint-seconds", "0.2", "--out", str(tmp_path)]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("seeds/*/checkpoint/manifest.json"))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(number)
        process.wait(timeout=60)
        time.sleep(4)
        before = [path.read_bytes() for path in sorted(tmp_path.glob("seeds/*/checkpoint/manifest.json"))]
        time.sleep(2)
        after = [path.read_bytes() for path in sorted(tmp_path.glob("seeds/*/checkpoint/manifest.json"))]
        assert before == after
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
