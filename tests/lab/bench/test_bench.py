"""What `fromp bench` measures is what it says: the slow twin takes the same step as the fast one."""

import profile_step
import pytest
import torch

from fromp.lab import bench
from fromp.lab.bench import SETTINGS, memory, scaling, steps, task_end, ways
from fromp.lab.bench.table import table


def gradients(setting):
    return torch.cat([p.grad.flatten() for p in setting.model.parameters()])


def test_the_slow_twin_takes_the_same_step():
    setting = SETTINGS["mlp"]()
    prior = setting.prior(2)
    x, y = setting.images(16), setting.labels(16)
    with torch.no_grad():
        for p in setting.model.parameters():
            p += 0.01 * torch.randn(p.shape, generator=setting.generator)
    for group in setting.optimizer.param_groups:
        group["lr"] = 0.0  # the same weights for both
    steps.fromp_step(setting, x, y, prior, None)
    fast = gradients(setting)
    steps.slow_step(setting, x, y, prior)
    torch.testing.assert_close(gradients(setting), fast, rtol=1e-3, atol=1e-6)


def test_each_case_is_printed_as_it_comes_and_all_of_them_are_the_table(tmp_path, monkeypatch, capsys):
    row = next(steps.step_costs("mlp", (1,), 1))
    assert row["ratio"] == row["seconds"]["fromp"] / row["seconds"]["plain"]
    assert row["slow_twin_ratio"] > 1
    curvature, engine = task_end.curvature_costs("mlp", 1), task_end.engine_cost(1)
    methods = {"past_tasks": 5, "points": 200, "seconds": {"ewc": 0.001}, "ratio": {"ewc": 1.5}}
    printed = []

    def grown(name, case):
        printed.append(capsys.readouterr().out)
        return 1.0

    monkeypatch.setattr(bench, "SETTINGS", {"mlp": SETTINGS["mlp"]})
    monkeypatch.setattr(bench, "step_costs", lambda *arguments: iter([row]))
    monkeypatch.setattr(bench, "curvature_costs", lambda *arguments: curvature)
    monkeypatch.setattr(bench, "method_costs", lambda *arguments: methods)
    monkeypatch.setattr(bench, "engine_cost", lambda *arguments: engine)
    monkeypatch.setattr(bench, "peak_memory", grown)
    threads = torch.get_num_threads()
    report = bench.main(tmp_path, quick=True)
    torch.set_num_threads(threads)
    assert "| mlp | 1 |" in printed[0]  # before memory is measured
    assert "| `ewc` | 1.50 x (1.00 ms) |" in printed[0]
    said = "".join(printed) + capsys.readouterr().out
    assert said == f"{table(report)}\n\nwritten: {tmp_path / 'bench.json'}\n"


def test_what_the_profile_says():
    share, rates = {"convolutions": 0.8, "the rest": 0.2}, {"one": 90.0, "another": 120.0}
    said = profile_step.text(
        {
            "profile": {
                "past_tasks": 5, "share": share, "gflop": 150.0, "gflop_convolutions": 140.0, "gflops": 100.0,
                "gflops_at_full_rate": rates,
            },
            "kept_memory": {"ratio": 1.41},
            "split_cifar": {"images": 10.8e6, "ratio": 0.99, "steps": 4500.0, "ends": 360.0},
        }
    )  # fmt: skip
    assert "140 of them are convolutions', which run at 117." in said
    assert "The most that was seen of these cores is 120, in another: the step takes 1.2 times" in said
    assert "75 minutes in steps, 6 at the ends of tasks." in said


def test_a_step_without_a_cost_of_its_own_is_as_fast_as_plain_training():
    plain = {past: 2.0 * (256 + 200 * past) for past in range(1, 6)}  # two seconds an image
    costs = [{"network": "cnn", "past_tasks": t, "seconds": {"plain": p, "fromp": p}} for t, p in plain.items()]
    free = [{"network": "cnn", "examples": 256, "seconds": {"scores": 0.0, "ggn": 0.0, "kernel": 0.0}}]
    found = profile_step.split_cifar_cost(costs, free)
    assert found["ratio"] == pytest.approx(1)
    assert found["images"] == 80 * (75_000 + 20 * 200 * (1 + 2 + 3 + 4 + 5))
    costly = [{**free[0], "seconds": {"scores": 0.0, "ggn": 256.0, "kernel": 0.0}}]
    assert profile_step.split_cifar_cost(costs, costly)["ends"] == pytest.approx(75_000)


def test_growth_of_memory_is_seen():
    """A step of the CNN needs more than nothing."""
    assert memory.peak_memory("cnn", "plain step") > 10


def test_points_drawn_within_every_task_are_the_whole_penalty_where_all_are_drawn(monkeypatch):
    """Both ways: with the kernel of the drawn points, and with deviations that are remembered."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 10)
    reg = ways.fromp(model)
    monkeypatch.setattr(ways, "BATCH", 2 * ways.POINTS)
    drawn = [ways.Drawn(reg, own_kernels) for own_kernels in (True, False)]
    for _ in range(2):
        x, y = torch.randn(100, 6), torch.arange(100) % 10
        reg.end_task((x, y))
    for one in drawn:
        with monkeypatch.context() as patch:
            patch.setattr(reg, "end_task", lambda data: None)
            one.end_task(None)
    with torch.no_grad():
        model.weight += 0.01 * torch.randn_like(model.weight)
    expected = torch.autograd.grad(reg.penalty(), model.weight)[0]
    for one in drawn:
        found = torch.autograd.grad(one.penalty(), model.weight)[0]
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max()))


def test_a_diagonal_as_control_variate_leaves_the_average_as_it_is(monkeypatch):
    """Over all pairs of tasks the gradient is that of all points; the diagonal is that of the penalty's Hessian."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 10).double()
    reg = ways.fromp(model)
    one = ways.DiagonalForOthers(reg, control=True)
    for _ in range(3):
        one.end_task((torch.randn(100, 6).double(), torch.arange(100) % 10))

    def gradient(penalty):
        return torch.autograd.grad(penalty, model.weight)[0]

    slope, h = torch.zeros_like(model.weight), 1e-5
    for place in [(0, 0), (3, 4), (9, 5)]:
        with torch.no_grad():
            model.weight[place] += h
        slope[place] = gradient(reg.penalty())[place] / h
        with torch.no_grad():
            model.weight[place] -= h
        expected = reg.tau * one._h.sum(0)[: model.weight.numel()].view_as(model.weight)[place]
        assert slope[place].item() == pytest.approx(expected.item(), rel=1e-2)
    with torch.no_grad():
        model.weight += 0.1 * torch.randn_like(model.weight)
    found = []
    for pair in ([0, 1], [0, 2], [1, 2]):
        monkeypatch.setattr(reg, "_draw", lambda past, count, pair=pair: torch.tensor(pair))
        found.append(gradient(one.penalty()))
    torch.testing.assert_close(torch.stack(found).mean(0), gradient(reg.penalty()))
    assert not torch.allclose(found[0], found[1], rtol=0.1)


def test_the_cost_model_is_found_again():
    """Seconds that follow it exactly give its factors back."""
    known = {"GGN": 1.5, "kernels": 3.0, "pairs": 0.2}
    small, large = ({**scaling.predicted(size, known), "pass": 1.0} for size in scaling.FITTED)
    assert scaling.fitted(small, large) == pytest.approx(known)
    size = scaling.Size(examples=300, points=30, outputs=3, columns=2, kernels=4)
    assert size.passes() == pytest.approx({"GGN": 300 * 5 / 3, "kernels": 4 * 30 * 7 / 3})
    assert size.kernel_bytes() == 4 * 3 * 900
