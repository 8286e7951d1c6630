"""Several processes that learn one stream hold what one process would hold, and descend what it would descend."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from oracles import ranks

from fromp.foundation import storage
from fromp.foundation.state import flatten

ROOT = Path(__file__).parent.parent.parent
STATES = ["tensors", "sampler", "plain", "split"]


def torchrun(folder, size, *scenarios, **environment):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [*command, str(ROOT / "tests/oracles/ranks.py"), str(folder), *scenarios],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **environment},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip


def alone(model):
    return model


def whole(reg, data, head, rank, size):
    reg.end_task(data, head)


def assert_close(found, expected, tolerance):
    (tensors, tree), (others, other_tree) = flatten(found), flatten(expected)
    assert tensors.keys() == others.keys()
    for name, value in tensors.items():
        scale = max(1.0, float(others[name].abs().max())) if others[name].numel() else 1.0
        difference = float((value.double() - others[name].double()).abs().max()) if value.numel() else 0.0
        assert difference <= tolerance * scale, name
    assert_numbers_close(tree, other_tree, tolerance)


def assert_numbers_close(found, expected, tolerance):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_numbers_close(found[name], expected[name], tolerance)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance)
    else:
        assert found == json.loads(json.dumps(expected))


def check_states(folder, size):
    expected = ranks.states(alone, 0, 1, whole)
    for scenario in STATES:
        # With a sampler other examples draw the random numbers; split weights are not copied.
        without = {"sampler": ranks.COPIED | {"random"}, "split": ranks.COPIED}.get(scenario, set())
        names = expected.keys() - without
        for rank in range(size):
            found = storage.read(folder / scenario / str(rank), scenario)
            for name in names:
                assert_close(found[name], expected[name], 1e-9)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two ranks found in every short scenario: one start of the processes for all of them."""
    folder = tmp_path_factory.mktemp("two")
    ended = torchrun(folder, 2, *STATES, "mistakes")
    assert ended.returncode == 0, ended.stderr
    return folder


def test_two_ranks_hold_what_one_process_holds(two):
    """Memory, precision, kernels, draws, the penalty and DDP's gradient, to 1e-9 in double precision."""
    check_states(two, 2)


def test_what_goes_wrong_on_one_rank_is_an_error_on_all(two):
    first, second = (storage.read(two / "mistakes" / str(rank), "mistakes") for rank in range(2))
    assert second["nan on the last rank"][0] == "DataError"
    assert "NaN or infinity" in second["nan on the last rank"][1]
    for mistake in ("nan on the last rank", "labels on the last rank", "nothing on the last rank"):
        kind, message = second[mistake]
        assert first[mistake] == [kind, f"on rank 1: {message}"]
    assert first["the whole task on each"] == second["the whole task on each"]
    assert "ranks 0 and 1 gave the same 42 examples" in first["the whole task on each"][1]
    assert "rank 1 ends a task with head=[0, 1], rank 0 with head=[2, 3]" in first["another head on each"][1]
    assert "the weights of rank 1 are not those of rank 0" in first["another model on each"][1]
    assert "which FSDP2 does not make; use FROMP" in first["a copy of split weights"][1]
    assert "'0.weight' is split over ranks by something other than" in first["weights split by a layer"][1]
    assert "second derivatives" in first["second derivatives"][1]
    assert first["tasks"] == second["tasks"] == 0


@pytest.mark.slow
def test_four_ranks_hold_what_one_process_holds(tmp_path):
    ended = torchrun(tmp_path, 4, *STATES)
    assert ended.returncode == 0, ended.stderr
    check_states(tmp_path, 4)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", ranks.STREAMS)
def test_a_stream_in_single_precision_ends_where_one_process_ends(tmp_path, kind, size):
    """Also if every rank is killed after a task and the stream goes on from what rank 0 has saved."""
    expected = ranks.stream(alone, kind, 0, 1, tmp_path / "alone")
    killed = torchrun(tmp_path, size, kind, KILLED_AFTER="1")
    assert killed.returncode != 0
    reg = type(ranks.KINDS[kind](ranks.network(torch.float32)))
    assert len(reg.load(tmp_path / "reg", ranks.network(torch.float32)).memories) in (1, 2)
    ended = torchrun(tmp_path, size, kind)
    assert ended.returncode == 0, ended.stderr
    for rank in range(size):
        found = storage.read(tmp_path / kind / str(rank), kind)
        assert_close(found["model"], expected["model"], 1e-5)
