"""Many tasks in one process keep nothing but their memory; a thousand of them: `tools/reliability/lives.py`."""

from mmap import mmap

from reliability import lives


def test_tensors_of_forgotten_tasks_are_gone():
    found, findings = lives.campaign(60)
    assert found["tensors_per_task"] <= 20
    assert not findings  # nor does the resident memory grow by more than 64 KiB per task


def test_a_leak_is_found(monkeypatch):
    """The campaign is able to fail: on memory that is never given back, and on tensors that stay."""
    kept = []

    class Leaking(lives.FROMP):
        def end_task(self, *given, **options):
            pages = mmap(-1, 200_000)  # what the allocator has freed before cannot hold them
            pages.write(bytes(200_000))
            kept.append([pages, *map(lives.torch.zeros, [1] * 30)])
            super().end_task(*given, **options)

    monkeypatch.setattr(lives, "FROMP", Leaking)
    _, findings = lives.campaign(30)
    assert any("KiB stay per task" in finding for finding in findings)
    assert any("tensors stay per task" in finding for finding in findings)
