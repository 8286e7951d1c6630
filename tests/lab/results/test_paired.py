"""Differences paired by seed, against SciPy's."""

from pathlib import Path

import pytest
from scipy import stats

from fromp.lab.results import paired
from fromp.lab.results.record import Experiment, SeedResult

FIRST = {0: 0.961, 1: 0.958, 2: 0.964, 5: 0.5}
OTHER = {4: 0.9, 2: 0.957, 1: 0.955, 0: 0.956}


def experiment(name: str, accuracies: dict[int, float]) -> Experiment:
    seeds = [SeedResult(seed, [[value]], 1.0) for seed, value in accuracies.items()]
    return Experiment(Path(name), "toy", name, {}, {}, seeds, name)


@pytest.mark.parametrize("freedom", range(1, 9))
@pytest.mark.parametrize("t", [0.0, 0.3, -2.5, 8.0])
def test_the_chance_of_a_farther_t_is_scipys(freedom, t):
    assert paired.two_sided(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), abs=1e-12)


def test_only_shared_seeds_count_and_each_with_itself():
    found = paired.difference(experiment("one", FIRST), experiment("other", OTHER))
    test = stats.ttest_rel([FIRST[seed] for seed in (0, 1, 2)], [OTHER[seed] for seed in (0, 1, 2)])
    assert (found.n, found.mean) == (3, pytest.approx(0.005))
    assert found.p == pytest.approx(test.pvalue)


def test_an_unfinished_seed_does_not_count():
    one = experiment("one", {0: 0.9, 1: 0.9})
    unfinished = Experiment(Path("other"), "toy", "other", {}, {}, [SeedResult(0, [[0.8]], 1.0, tasks=2)], "other")
    assert paired.difference(one, unfinished) is None


def test_a_table_of_differences_leaves_out_what_one_seed_cannot_tell():
    first, rows = experiment("one", FIRST), [experiment("other", OTHER), experiment("single", {0: 0.9})]
    table = paired.differences_table(first, [*rows, experiment("far", {seed: v - 0.1 for seed, v in FIRST.items()})])
    assert table.heads[0] == "one less"
    assert table.rows[0] == ["other", "+0.50 ± 0.12", "3", "0.049"]
    assert [row[0] for row in table.rows] == ["other", "far"]
    assert table.rows[1][3] == "< 0.0001"


def test_seeds_that_all_differ_by_the_same():
    one, same = experiment("one", {0: 0.5, 1: 0.75}), experiment("same", {0: 0.5, 1: 0.75})
    assert paired.difference(one, same).p == 1.0
    assert paired.difference(one, experiment("less", {0: 0.25, 1: 0.5})).p == 0.0
