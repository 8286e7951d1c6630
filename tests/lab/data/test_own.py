"""One's own data: .npz, CSV, a folder of class folders, any Dataset, and the errors of each."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

from fromp.foundation.errors import DataError
from fromp.lab.data import from_csv, from_dataset, from_folder, from_npz


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


class Malicious:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("executed",)


def test_npz_divided_or_not(tmp_path: Path) -> None:
    x, y = pixels(10, 4, 4), np.arange(10) % 2
    np.savez(tmp_path / "whole.npz", x=x, y=y)
    whole = from_npz(tmp_path / "whole.npz")
    assert (len(whole.train_y), len(whole.test_y)) == (8, 2)
    assert whole.test_y.tolist() == [0, 1]
    assert torch.equal(whole.test_x[0], torch.from_numpy(x[4]) / 255)
    np.savez(tmp_path / "keras.npz", x_train=x * 1.0, y_train=y[:, None] + 7, x_test=x[:2] * 1.0, y_test=y[:2] + 7)
    divided = from_npz(tmp_path / "keras.npz")
    assert divided.class_names == ("7", "8")
    assert divided.test_y.tolist() == [0, 1]
    assert divided.train_x.dtype == torch.float32
    assert float(divided.train_x.max()) > 1


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3)}, r"has the arrays \['a'\]; it needs train_x"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(2, int)}, r"shape \(3, 2\) for 2 labels"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3)}, "whole numbers or strings"),
        ({"x": np.array([["a"]] * 3), "y": np.zeros(3, int)}, "need to be numbers"),
        (
            {"x": np.array([[1.0], [np.nan], [0.0]]), "y": np.zeros(3, int)},
            "not finite, the first is number 1",
        ),
        ({"x": np.zeros((2, 2)), "y": np.zeros(2, int)}, "class '0' has 2 examples"),
        ({"x": np.array([Malicious(), 1], dtype=object), "y": np.zeros(2, int)}, "cannot be read as .npz"),
        (
            {"train_x": np.zeros((1, 2)), "train_y": [0], "test_x": np.zeros((1, 3)), "test_y": [0]},
            r"shape \(3,\), training inputs \(2,\)",
        ),
        (
            {"train_x": np.zeros((1, 2)), "train_y": [0], "test_x": np.zeros((1, 2)), "test_y": [5]},
            r"classes \['5'\] that the training data lack",
        ),
    ],
)
def test_npz_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrays: dict[str, Any], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=message):
        from_npz(tmp_path / "own.npz")
    assert not (tmp_path / "executed").exists()


def test_csv(tmp_path: Path) -> None:
    rows = "".join(f"{k},{'cat' if k % 2 else 'a dog'},{k / 2}\n" for k in range(10))
    (tmp_path / "own.csv").write_text("first,animal,second\n" + rows)
    own = from_csv(tmp_path / "own.csv", label="animal")
    assert own.class_names == ("a dog", "cat")
    assert own.test_x.tolist() == [[4.0, 2.0], [5.0, 2.5]]
    assert own.test_y.tolist() == [0, 1]
    assert own.train_x.shape == (8, 2)
    (tmp_path / "test.csv").write_text("first,animal,second\n1,cat,2\n")
    divided = from_csv(tmp_path / "own.csv", label="animal", test=tmp_path / "test.csv")
    assert len(divided.train_y) == 10
    assert divided.test_y.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", r"has 0 columns 'y'; its columns are \['a', 'b'\]"),
        ("", "has 0 columns 'y'"),
        ("a,y\n1,0\nx,0\n", r"line 3: 'x' in column 'a' is not a number"),
        ("a,y\n1,0\n,0\n", r"line 3: '' in column 'a' is not a number"),
        ("a,y\n1,0\n1,2,3\n", "line 3: 3 cells, but the header has 2"),
        ("a,y\n1,0\n2,\n", "line 3: the label 'y' is empty"),
        ("a,y\n1,0\nnan,0\n", "not finite, the first is number 1"),
        ("a,y\n1,0\n1e60,0\n", "line 3: a number is too large|not finite"),
        ("a,y\n", "has 0 rows"),
        ("y\n1\n", "0 input columns"),
    ],
)
def test_csv_errors(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        from_csv(tmp_path / "own.csv", label="y")


def test_csv_with_another_header_for_testing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,y\n1,0\n")
    (tmp_path / "b.csv").write_text("b,y\n1,0\n")
    with pytest.raises(DataError, match=r"has the columns \['b'\], not \['a'\]"):
        from_csv(tmp_path / "a.csv", label="y", test=tmp_path / "b.csv")


def picture(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def test_folder_of_class_folders(tmp_path: Path) -> None:
    for k in range(5):
        picture(tmp_path / "cat" / f"{k}.png", pixels(4, 6, seed=k))
        picture(tmp_path / "dog" / f"{k}.png", pixels(4, 6, 3, seed=k))
    (tmp_path / "cat" / "notes.txt").write_text("ignored")
    own = from_folder(tmp_path)
    assert own.class_names == ("cat", "dog")
    assert own.train_x.shape == (8, 3, 4, 6)
    assert own.test_y.tolist() == [0, 1]
    assert np.array_equal(own.test_x[0].numpy(), np.stack([pixels(4, 6, seed=2)] * 3))
    assert np.array_equal(own.test_x[1].numpy(), pixels(4, 6, 3, seed=2).transpose(2, 0, 1))


def test_folder_already_divided(tmp_path: Path) -> None:
    for k, name in enumerate(("10", "9")):
        picture(tmp_path / "train" / name / "a.png", pixels(4, 6, seed=k))
        picture(tmp_path / "test" / name / "b.png", pixels(4, 6, seed=k + 2))
    own = from_folder(tmp_path)
    assert own.class_names == ("9", "10")
    assert own.train_x.shape == (2, 1, 4, 6)
    assert own.test_y.tolist() == [1, 0]
    assert np.array_equal(own.test_x[0, 0].numpy(), pixels(4, 6, seed=2))
    picture(tmp_path / "test" / "new" / "b.png", pixels(4, 6))
    with pytest.raises(DataError, match=r"classes \['new'\] that the training data lack"):
        from_folder(tmp_path)


def test_folder_errors(tmp_path: Path) -> None:
    own = tmp_path / "own"
    with pytest.raises(DataError, match="is not a folder"):
        from_folder(own)
    own.mkdir()
    with pytest.raises(DataError, match="has no class folders"):
        from_folder(own)
    for k in range(3):
        picture(own / "cat" / f"{k}.png", pixels(4, 6))
    (own / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty has no images"):
        from_folder(own)
    (own / "empty").rmdir()
    picture(own / "cat" / "3.png", pixels(5, 6))
    with pytest.raises(DataError, match=r"3.png is 6 x 5 pixels, .*0.png is 6 x 4"):
        from_folder(own)
    picture(own / "cat" / "3.png", np.zeros((4, 6), np.uint16))
    with pytest.raises(DataError, match=r"3.png has more than 8 bits"):
        from_folder(own)
    (own / "cat" / "3.png").write_bytes((own / "cat" / "0.png").read_bytes()[:50])
    with pytest.raises(DataError, match=r"3.png cannot be read as an image"):
        from_folder(own)
    (own / "cat" / "3.png").write_bytes(b"text")
    with pytest.raises(DataError, match=r"3.png cannot be read as an image: it is none of BMP, GIF, .*; repair"):
        from_folder(own)


def test_any_dataset(tmp_path: Path) -> None:
    x, y = torch.randn(10, 2, 3), torch.arange(10) % 2
    own = from_dataset(TensorDataset(x, y), TensorDataset(x[:3], y[:3]))
    assert torch.equal(own.train_x, x)
    assert torch.equal(own.train_y, y)
    assert torch.equal(own.test_x, x[:3])
    divided = from_dataset([(x[k], "ab"[k % 2]) for k in range(10)])
    assert divided.class_names == ("a", "b")
    assert torch.equal(divided.test_x, x[4:6])
    scaled = from_dataset([(torch.full((2,), 255, dtype=torch.uint8), 0)] * 3)
    assert scaled.train_x.tolist() == [[1.0, 1.0]] * 2


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Stream(), "cannot be indexed or has no length"),
        ([], "the list is empty"),
        ([(torch.zeros(2), 0), (torch.zeros(3), 0)], r"item 1 has shape \(3,\), item 0 \(2,\)"),
        ([(Image.new("L", (2, 2)), 0)], "item 0 is not a .tensor, label. pair"),
        ([torch.zeros(3)], "item 0 is not a .tensor, label. pair"),
        ([(torch.tensor([float("inf")]), 0)] * 3, "not finite, the first is number 0"),
    ],
)
def test_dataset_errors(dataset: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_dataset(dataset)
