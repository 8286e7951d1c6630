"""The first task that runs share."""

from threading import Thread

import pytest
import torch
from filelock import FileLock
from oracles.runs import PLAN, plan
from reliability.damage import damaged

from fromp.foundation import storage
from fromp.foundation.errors import DerivativeError, FrompError
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.engine.first_task import FirstTask
from fromp.lab.engine.fit import Fit
from fromp.lab.engine.run import Run


@pytest.mark.parametrize("giver", ["finetune", "separate"])
def test_the_first_task_is_shared_and_changes_nothing(tmp_path, giver):
    alone = Run(plan("fromp"), BENCHMARKS["toy"], 0, tmp_path / "alone")
    alone.complete()
    Run(plan(giver), BENCHMARKS["toy"], 0, tmp_path / "a", tmp_path / "first").complete()
    steps = []
    shared = Run(plan("fromp"), BENCHMARKS["toy"], 0, tmp_path / "b", tmp_path / "first")
    steps += [(progress.task, progress.finished) for progress in shared.learn()]
    assert steps[0] == (1, True)  # the first task was not fitted again
    assert shared.rows == alone.rows
    for a, b in zip(alone.model.parameters(), shared.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_late_decay_begins_with_the_second_task_and_shares_the_first_one_of_a_constant_rate(tmp_path):
    constant = plan("finetune", schedule="constant")
    late = plan("finetune", schedule="late-decay", late_lr=constant.training.lr / 10)
    rates: dict[str, dict[int, list[float]]] = {"late": {}, "constant": {}}
    for name, one in (("constant", constant), ("late", late)):
        run = Run(one, BENCHMARKS["toy"], 0, tmp_path / name, tmp_path / "first")
        begin, fits = run._new_fit, []
        run._new_fit = lambda *given, begin=begin, fits=fits: fits.append(begin(*given)) or fits[-1]
        for progress in run.learn():
            if not progress.finished:
                rates[name].setdefault(progress.task, []).append(fits[-1].optimizer.param_groups[0]["lr"])
    lr = constant.training.lr
    assert list(rates["late"]) == [1]  # the first task was the other run's
    assert set(rates["constant"][0] + rates["constant"][1]) == {lr}
    assert rates["late"][1][0] == lr / 10
    assert rates["late"][1][-1] == pytest.approx(lr / 10 / len(rates["late"][1]))


def test_a_first_task_that_another_run_leaves_meanwhile_is_not_written_over(tmp_path):
    run = Run(PLAN, BENCHMARKS["toy"], 0, tmp_path / "run")
    fit = Fit(run.method, [(run.stream.task(0).train, None)], PLAN.training, 0)
    first = FirstTask(tmp_path / "first", PLAN, 0)
    first.path.parent.mkdir()
    with FileLock(tmp_path / "first" / ".lock"):  # the other is at it
        leaving = Thread(target=first.save, args=(fit, 1.0))
        leaving.start()
        leaving.join(0.3)
        assert not first.path.exists()
        storage.write(first.path, "first task", {"seconds": 2.0})
    leaving.join()
    assert storage.read(first.path, "first task")["seconds"] == 2.0


@pytest.mark.parametrize("method", ["finetune", "si"])
def test_a_run_that_diverges_stops_and_leaves_no_first_task(tmp_path, method):
    run = Run(plan(method, lr=1e38), BENCHMARKS["toy"], 3, tmp_path / "run", tmp_path / "first")
    with pytest.raises(DerivativeError, match=r"seed 3 is (nan|inf) at step 200 of 200 of task 1; .* lr than 1e\+38"):
        run.complete()
    assert not (tmp_path / "first").exists()


def test_a_damaged_first_task_is_refused_before_anything_changes(tmp_path):
    run = Run(plan("finetune"), BENCHMARKS["toy"], 0, tmp_path / "a", tmp_path / "first")
    run.complete()
    (path,) = (path for path in (tmp_path / "first").iterdir() if path.is_dir())
    state = storage.read(path, "first task")
    for number in range(60):
        broken, what = damaged(state, number)
        if broken is None:
            continue
        storage.write(path, "first task", broken)
        other = Run(plan("fromp"), BENCHMARKS["toy"], 0, tmp_path / "b")
        before = {name: value.clone() for name, value in other.model.state_dict().items()}
        fit = Fit(other.method, [(other.stream.task(0).train, None)], PLAN.training, 0)
        random = torch.get_rng_state()
        try:
            FirstTask(tmp_path / "first", plan("fromp"), 0).load(fit)
        except FrompError:
            assert all(torch.equal(before[name], value) for name, value in other.model.state_dict().items()), what
        torch.set_rng_state(random)
