"""Folders of every format so far: each loads into what it was, and can be brought up to date."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save
from torch import nn

from fromp import FROMP, CheckpointError, formats
from fromp.foundation import storage
from fromp.learn.cli import main

FOLDERS = Path(__file__).parent.parent / "oracles" / "folders"  # written by tools/reliability/old_folders.py
VERSIONS = sorted(path.name for path in FOLDERS.iterdir())


def network(version, kernel):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    model.load_state_dict(load_file(FOLDERS / version / f"{kernel}.safetensors"))
    return model


def check(folder, version, kernel):
    """The memory gives the penalty and the gradient that it gave to the version which saved it."""
    model = network(version, kernel)
    reg = FROMP.load(folder, model)
    assert reg.penalty().item() == pytest.approx(0, abs=1e-9)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    expected = json.loads((FOLDERS / version / "expected.json").read_text())[kernel]
    penalty = reg.penalty()
    penalty.backward()
    assert penalty.item() == pytest.approx(expected["penalty"], rel=1e-4)
    assert [w.grad.norm().item() for w in model.parameters()] == pytest.approx(expected["gradient"], rel=1e-4)
    reg.end_task((torch.randn(20, 4), torch.arange(20) % 2), head=[0, 1])
    assert len(reg.memories) == 3


def test_there_is_one_of_every_format():
    written = {storage.kind_and_format(FOLDERS / version / "full")[1] for version in VERSIONS}
    assert written == set(range(1, storage.FORMAT + 1))


@pytest.mark.parametrize("kernel", ["full", "identity"])
@pytest.mark.parametrize("version", VERSIONS)
def test_it_loads(version, kernel):
    check(FOLDERS / version / kernel, version, kernel)


@pytest.mark.parametrize("kernel", ["full", "identity"])
@pytest.mark.parametrize("version", VERSIONS)
def test_it_can_be_brought_up_to_date(version, kernel, tmp_path, capsys):
    folder = shutil.copytree(FOLDERS / version / kernel, tmp_path / "memory")
    assert main(["upgrade", str(folder)]) == 0
    today = FROMP.load(folder, network(version, kernel)).state_dict()
    assert storage.read(folder, formats.KIND).keys() >= today.keys()
    assert len(list(folder.iterdir())) == 3  # the old files are gone
    check(folder, version, kernel)
    assert not formats.upgrade(folder)
    assert main(["upgrade", str(folder)]) == 0
    assert "is up to date already" in capsys.readouterr().out


def test_what_fails_leaves_the_folder_as_it_was(tmp_path, monkeypatch):
    folder = shutil.copytree(FOLDERS / "0.1" / "full", tmp_path / "memory")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*args, **options):
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr(storage, "replace", full)
    with pytest.raises(CheckpointError, match="No space left"):
        formats.upgrade(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("lost", ["weights", "memories", "likelihood", "settings"])
def test_an_incomplete_old_state_is_refused(lost, tmp_path):
    folder = shutil.copytree(FOLDERS / "0.1" / "full", tmp_path / "memory")
    manifest = json.loads((folder / storage.MANIFEST).read_text())
    (file,) = folder.glob("state-*.json")
    tree = json.loads(file.read_text())
    del tree[lost]
    rewrite(folder, manifest, "state", ".json", json.dumps(tree).encode())
    with pytest.raises(CheckpointError, match=f"format 1 is incomplete .*{lost}"):
        FROMP.load(folder, network("0.1", "full"))


def test_an_old_state_without_a_tensor_is_refused(tmp_path):
    for name in load_file(next((FOLDERS / "0.1" / "full").glob("tensors-*"))):
        folder = shutil.copytree(FOLDERS / "0.1" / "full", tmp_path / name)
        manifest = json.loads((folder / storage.MANIFEST).read_text())
        tensors = load_file(folder / manifest["files"]["tensors"]["name"])
        del tensors[name]
        rewrite(folder, manifest, "tensors", ".safetensors", save(tensors))
        if name.startswith("precision."):
            continue  # a weight that no task has used yet has none
        with pytest.raises(CheckpointError):
            FROMP.load(folder, network("0.1", "full"))


def rewrite(folder, manifest, role, suffix, data):
    digest = hashlib.sha256(data).hexdigest()
    manifest["files"][role] = {"name": f"{role}-{digest[:16]}{suffix}", "sha256": digest}
    (folder / manifest["files"][role]["name"]).write_bytes(data)
    (folder / storage.MANIFEST).write_text(json.dumps(manifest))


def test_another_kind_of_folder(tmp_path):
    storage.write(tmp_path / "run", "run", {"step": 1})
    assert not formats.upgrade(tmp_path / "run")
