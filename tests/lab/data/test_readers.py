"""Every reader under Hypothesis: changed bytes are read, or refused in our words. `tools/reliability/readers.py`."""

import pytest

pytest.importorskip("hypothesis")

from reliability import readers


@pytest.mark.parametrize("name", readers.READERS)
def test_changed_bytes_are_read_or_refused(name):
    tried, found = readers.by_hypothesis(name, 25)
    assert tried >= 20
    assert not found


def test_an_exception_that_is_not_ours_is_found(tmp_path):
    wrong = readers.Reader(lambda folder, data: {}["missing"], lambda: [b"x"])
    assert readers.attempt(wrong, tmp_path, b"").startswith("KeyError in")
