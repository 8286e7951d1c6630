"""Many tasks in one process keep nothing but their memory; a thousand of them: `tools/reliability/lives.py`."""

from reliability import lives


def test_tensors_of_forgotten_tasks_are_gone():
    found, findings = lives.campaign(20)
    assert found["tensors_per_task"] <= 20
    assert not [finding for finding in findings if "KiB" not in finding]  # the interpreter itself grows at first
