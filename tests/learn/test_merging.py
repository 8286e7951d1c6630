"""Two sites go on from one state and become one again."""

import shutil

import pytest
import torch
from oracles.months import month

from fromp.foundation.errors import FrompError
from fromp.lab.cli import main
from fromp.learn import Learner
from fromp.learn.month import opened


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Folders start, here and there: each site has learned one further month."""
    folder = tmp_path_factory.mktemp("sites")
    Learner(folder / "start").learn(month(folder, 0, 120), "churn", epochs=10, hidden=[8], memory_size=8)
    for number, site in enumerate(("here", "there"), 1):
        shutil.copytree(folder / "start", folder / site)
        Learner(folder / site).learn(month(folder, number, 120), tau=1.0)
    return folder


@pytest.fixture
def here(sites, tmp_path):
    shutil.copytree(sites / "here", tmp_path / "here")
    return tmp_path / "here"


def test_both_are_remembered(sites, here, capsys):
    before = {path.name: path.read_bytes() for path in (sites / "there").iterdir()}
    assert main(["merge", str(sites / "there"), "--state", str(here), "--start", str(sites / "start")]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["month-0", "month-1", "month-2"]
    learner = Learner(here)
    assert [row["points"] for row in learner.inspect().rows] == [8, 8, 8]
    assert [row["note"] for row in learner.evaluate().rows] == ["", "", ""]
    regs = [opened(Learner(sites / site)._saved(), None) for site in ("start", "here", "there")]
    merged = opened(learner._saved(), None)
    for name, value in merged.precision.items():
        start, mine, theirs = (reg.precision[name] for reg in regs)
        assert torch.allclose(value, mine + theirs - start, rtol=1e-5)
    weights = [dict(reg.model.named_parameters()) for reg in (*regs, merged)]
    for name, value in weights[3].items():
        assert torch.allclose(value, (weights[1][name] + weights[2][name]) / 2)
    assert float(merged.penalty().detach()) == pytest.approx(0, abs=1e-6)
    assert learner.months[2].scores[1] is None
    assert {path.name: path.read_bytes() for path in (sites / "there").iterdir()} == before
    learner.learn(month(here.parent, 3, 60), tau=1.0)
    assert len(learner.months[-1].scores) == 4


def test_a_month_that_one_site_has_forgotten_stays_forgotten(sites, here):
    Learner(here).forget("month-0")
    Learner(here).merge(sites / "there", sites / "start")
    assert [m.remembered for m in Learner(here).months] == [False, True, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": [9], "epochs": 1}, "the network of the two states differ"),
        ({"drop": ["age"], "epochs": 1, "hidden": [8]}, "the columns of the two states differ"),
        ({"room": 2, "epochs": 1, "hidden": [8]}, "the outputs of the two states differ"),
    ],
)
def test_states_that_do_not_fit(here, tmp_path, options, message):
    Learner(tmp_path / "other").learn(month(tmp_path, 0, 120), "churn", **options)
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    with pytest.raises(FrompError, match=message):
        Learner(here).merge(tmp_path / "other")
    assert {path.name: path.read_bytes() for path in here.iterdir()} == before


def test_another_start(sites, here):
    with pytest.raises(
        FrompError, match="the other one did not go on from the start, which has the months month-0, month-1"
    ):
        Learner(here).merge(sites / "there", here)
    with pytest.raises(FrompError, match=r"both states have learned the file of 'month-0'|hold the same examples"):
        Learner(here).merge(sites / "there")
