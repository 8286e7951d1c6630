"""Seeds over a Ray cluster of two nodes, both of them on this machine, come to what they come to here."""

import json

import pytest
from oracles.runs import SETTINGS, accuracy

from fromp.lab.engine.jobs import Execution, learn
from fromp.lab.results.plan import Plan
from fromp.learn.console import PlainConsole

pytestmark = pytest.mark.slow


@pytest.fixture
def two_nodes():
    """The addresses of two nodes with one core each, so that two jobs need both."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 * 2**20})
    cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        assert ray.cluster_resources()["CPU"] == 2
        yield ray
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_two_nodes_come_to_what_one_process_does(tmp_path, two_nodes):
    plan = Plan.of("toy", "fromp", **SETTINGS)
    for name, execution in {"ray": Execution(jobs=2, ray=True, quiet=True), "here": Execution(quiet=True)}.items():
        assert learn(plan, [0, 1], tmp_path / name, execution, PlainConsole()) == 0
    assert accuracy(tmp_path / "ray") == accuracy(tmp_path / "here")
    for seed in (0, 1):
        manifests = (tmp_path / name / "seeds" / str(seed) / "checkpoint" / "manifest.json" for name in ("ray", "here"))
        there, here = (json.loads(manifest.read_text())["files"]["tensors"]["sha256"] for manifest in manifests)
        assert there == here
