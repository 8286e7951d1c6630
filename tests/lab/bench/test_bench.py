"""What `fromp bench` measures is what it says: the slow twin takes the same step as the fast one."""

import pytest
import torch

from fromp.lab.bench import SETTINGS, machine, runs, steps, table


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


def test_rows_and_table():
    row = steps.step_costs("mlp", (1,), 1)[0]
    assert row["ratio"] == row["seconds"]["fromp"] / row["seconds"]["plain"]
    assert row["slow_twin_ratio"] > 1
    report = {
        "steps": [row],
        "curvature": [runs.curvature_costs("mlp", 1)],
        "engine": runs.engine_cost(1),
        "memory": [{"network": "mlp"} | dict.fromkeys(machine.CASES, 1.0)],
        "profile": {
            "past_tasks": 5, "share": {"convolutions": 0.8, "the rest": 0.2}, "gflop": 150.0,
            "gflop_convolutions": 140.0, "gflops": 100.0, "gflops_at_full_rate": {"one": 90.0, "another": 120.0},
        },
    }  # fmt: skip
    text = table(report)
    assert "| mlp | 1 |" in text
    assert "140 of them are convolutions', which run at 117." in text
    assert "The most that was seen of these cores is 120, in another: the step takes 1.2 times" in text


def test_a_step_without_a_cost_of_its_own_is_as_fast_as_plain_training():
    plain = {past: 2.0 * (256 + 200 * past) for past in range(1, 6)}  # two seconds an image
    costs = [{"network": "cnn", "past_tasks": t, "seconds": {"plain": p, "fromp": p}} for t, p in plain.items()]
    free = [{"network": "cnn", "examples": 256, "seconds": {"scores": 0.0, "ggn": 0.0, "kernel": 0.0}}]
    found = runs.split_cifar_cost(costs, free)
    assert found["ratio"] == pytest.approx(1)
    assert found["images"] == 80 * (75_000 + 20 * 200 * (1 + 2 + 3 + 4 + 5))
    costly = [{**free[0], "seconds": {"scores": 0.0, "ggn": 256.0, "kernel": 0.0}}]
    assert runs.split_cifar_cost(costs, costly)["ends"] == pytest.approx(75_000)


def test_growth_of_memory_is_seen():
    """A step of the CNN needs more than nothing."""
    assert machine.peak_memory("cnn", "plain step") > 10
