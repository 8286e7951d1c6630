"""What `fromp bench` measures is what it says: the slow twin takes the same step as the fast one."""

import torch

from fromp import bench


def gradients(setting):
    return torch.cat([p.grad.flatten() for p in setting.model.parameters()])


def test_the_slow_twin_takes_the_same_step():
    setting = bench.SETTINGS["mlp"]()
    prior = setting.prior(2)
    x, y = setting.images(16), setting.labels(16)
    with torch.no_grad():
        for p in setting.model.parameters():
            p += 0.01 * torch.randn(p.shape, generator=setting.generator)
    for group in setting.optimizer.param_groups:
        group["lr"] = 0.0  # the same weights for both
    bench._fromp_step(setting, x, y, prior, None)
    fast = gradients(setting)
    bench._slow_step(setting, x, y, prior)
    torch.testing.assert_close(gradients(setting), fast, rtol=1e-3, atol=1e-6)


def test_rows_and_table():
    row = bench.step_costs("mlp", (1,), 1)[0]
    assert row["ratio"] == row["seconds"]["fromp"] / row["seconds"]["plain"]
    assert row["slow_twin_ratio"] > 1
    report = {
        "steps": [row],
        "curvature": [bench.curvature_costs("mlp", 1)],
        "engine": bench.engine_cost(1),
        "memory": [{"network": "mlp"} | dict.fromkeys(bench.CASES, 1.0)],
    }
    assert "| mlp | 1 |" in bench.table(report)


def test_growth_of_memory_is_seen():
    """Two thousand examples through the GGN pass need more than nothing."""
    assert bench.peak_memory("cnn", "plain step") > 10
