"""A fault at a write leaves what was there, or what was being written. All of them: `tools/reliability/writes.py`."""

import warnings

from reliability import writes


def test_a_save_survives_a_fault_at_any_call():
    with warnings.catch_warnings():
        found, findings = writes.campaign(["save"], every=7)
    assert not findings
    assert found["faults"]["save"]["calls"] >= 15
    assert found["faults"]["save"]["killed"] >= 3


def test_a_manifest_that_is_written_in_place_is_found(monkeypatch):
    """The campaign is able to fail."""

    def in_place(path, data, private=False):
        with writes.os.fdopen(writes.os.open(path, writes.os.O_WRONLY | writes.os.O_CREAT), "wb") as stream:
            stream.write(data)

    monkeypatch.setattr(writes.storage, "replace", in_place)
    monkeypatch.setattr(writes, "FAULTS", {"killed": None})
    with warnings.catch_warnings():
        _, findings = writes.campaign(["save"])
    assert any("cannot be read afterwards" in finding for finding in findings)
