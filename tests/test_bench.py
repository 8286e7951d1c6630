"""What `fromp bench` measures is what it says: the slow twin takes the same step as the fast one."""

import torch

from fromp.bench import SETTINGS, machine, runs, steps, table


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
    }
    assert "| mlp | 1 |" in table(report)


def test_growth_of_memory_is_seen():
    """Two thousand examples through the GGN pass need more than nothing."""
    assert machine.peak_memory("cnn", "plain step") > 10
