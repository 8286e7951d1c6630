"""A folder that is written: by several at once, beside other people's files, over links, and after a death."""

import hashlib
import json
import multiprocessing
import os
import stat
import threading
from pathlib import Path

import pytest
import torch

from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError


def state(number: float, size: int = 1000) -> storage.State:
    return {"number": number, "values": torch.full((size,), number)}


def test_other_peoples_files_stay(tmp_path):
    others = {"state-of-the-art.json": b"{}", "tensors-backup.safetensors": b"mine", "notes.txt": b"hello"}
    for name, data in others.items():
        (tmp_path / name).write_bytes(data)
    storage.write(tmp_path, "test", state(1))
    storage.write(tmp_path, "test", state(2))
    assert {name: (tmp_path / name).read_bytes() for name in others} == others
    assert storage.read(tmp_path, "test")["number"] == 2
    assert len(list(tmp_path.iterdir())) == len(others) + 3  # of the first state nothing is left


@pytest.mark.parametrize("text", ['{"name": "an app"}', "not JSON", "[]", '{"kind": "test", "format": 2, "files": {}}'])
def test_a_manifest_of_something_else_is_left_alone(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="is not one that fromp wrote"):
        storage.write(tmp_path, "test", state(1))
    assert (tmp_path / "manifest.json").read_text() == text
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_of_another_kind_is_not_written_over(tmp_path):
    storage.write(tmp_path, "test", state(1))
    with pytest.raises(CheckpointError, match="holds 'test', not 'other'; give another folder"):
        storage.write(tmp_path, "other", state(2))
    assert storage.read(tmp_path, "test")["number"] == 1


def test_only_the_owner_may_read(tmp_path):
    before = os.umask(0o022)
    try:
        storage.write(tmp_path / "memory", "test", state(1))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "memory").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "memory").iterdir()} == {0o600}


def test_what_a_dead_writer_left_is_swept(tmp_path):
    storage.write(tmp_path, "test", state(1))
    left = [".tensors-0123456789abcdef.safetensors.1f2e3d4c.tmp", ".state-0123456789abcdef.json.77.tmp"]
    for name in [*left, ".notes.tmp"]:
        (tmp_path / name).write_bytes(b"examples that were to be deleted")
    storage.write(tmp_path, "test", state(2))
    assert not any((tmp_path / name).exists() for name in left)
    assert (tmp_path / ".notes.tmp").exists()  # not ours


def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(storage.secrets, "token_hex", lambda size: "guessed")
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / ".manifest.json.guessed.tmp").symlink_to(victim)
    storage.write(folder, "test", state(1))  # swept as a leftover, the link itself
    assert victim.read_text() == "precious"
    target = folder / "results.json"
    target.with_name(".results.json.guessed.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        storage.replace(target, b"new")
    assert victim.read_text() == "precious"


def _write_many(folder: Path, number: int, count: int) -> None:
    for k in range(count):
        storage.write(folder, "test", state(number + k / 1000, 20_000))


def test_several_processes_writing_leave_a_folder_that_can_be_read(tmp_path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(tmp_path, number, 20)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        if (tmp_path / storage.MANIFEST).exists():
            found = storage.read(tmp_path, "test")
            assert torch.equal(found["values"], torch.full((20_000,), found["number"]))
            reads += 1
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert reads > 10
    assert len(list(tmp_path.iterdir())) == 3


def test_several_threads_writing(tmp_path):
    errors = []

    def write(number):
        try:
            _write_many(tmp_path, number, 20)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(list(tmp_path.iterdir())) == 3
    storage.read(tmp_path, "test")


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path):
    storage.write(tmp_path / "memory", "test", state(1))
    path = tmp_path / "memory" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["state"]["name"] = "../state-0123456789abcdef.json"
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="does not name its state"):
        storage.read(tmp_path / "memory", "test")


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    storage.write(tmp_path, "test", state(1))
    real = os.fsync

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"cannot write .* \(No space left on device\).*give another folder"):
        storage.write(tmp_path, "test", state(2))
    monkeypatch.setattr(storage.os, "fsync", real)
    assert storage.read(tmp_path, "test")["number"] == 1
    assert len(list(tmp_path.iterdir())) == 3


def test_numbers_of_a_kind_that_nobody_saves_are_refused(tmp_path):
    """Complex ones, which safetensors knows, break what comes after."""
    storage.write(tmp_path, "run", {"a": torch.ones(2, dtype=torch.float64)})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    entry = manifest["files"]["tensors"]
    data = (tmp_path / entry["name"]).read_bytes().replace(b'"F64", "shape": [2]', b'"C64", "shape": [2]')
    digest = hashlib.sha256(data).hexdigest()
    manifest["files"]["tensors"] = {"name": f"tensors-{digest[:16]}.safetensors", "sha256": digest}
    (tmp_path / manifest["files"]["tensors"]["name"]).write_bytes(data)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"'a' in .* is torch\.complex64"):
        storage.read(tmp_path, "run")
