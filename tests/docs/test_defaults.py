"""What the documents say of the defaults, held to what was kept of tools/safety_grid.py."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

KEPT = Path(__file__).parents[2] / "results/defaults/safety.json"
CHANCE = {"the same, 0 to 255": 0.15, "the same, raw": 0.7}  # below it plain SGD has diverged, and nothing is learned


def cells():
    scores = defaultdict(dict)
    for row in json.loads(KEPT.read_text())["rows"]:
        scores[row["stream"], row["optimiser"], row["way"]][row["seed"]] = row["score"]
    for stream, optimiser in dict.fromkeys(key[:2] for key in scores):
        yield stream, optimiser, {way: of for (*where, way), of in scores.items() if where == [stream, optimiser]}


def test_the_grid_is_complete():
    found = list(cells())
    assert len(found) == 8 * 5
    assert all(sorted(of) == list(range(5)) for *_, ways in found for of in ways.values())


def test_fromp_ends_nowhere_below_plain_training():
    for stream, optimiser, ways in cells():
        assert mean(ways["FROMP"].values()) >= mean(ways["plain"].values()), (stream, optimiser)


def test_mixed_past_ends_below_plain_training_only_by_chance():
    for stream, optimiser, ways in cells():
        apart = [ways["MixedPast"][seed] - ways["plain"][seed] for seed in ways["plain"]]
        diverged = mean(ways["plain"].values()) < CHANCE.get(stream, 0.0) and optimiser.startswith("SGD")
        assert diverged or mean(apart) > -2 * stdev(apart) / len(apart) ** 0.5, (stream, optimiser)
