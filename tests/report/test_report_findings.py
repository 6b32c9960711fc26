"""The sentence and the numbers, against figures worked out by hand."""

from pathlib import Path

import pytest
import torch

from bayesprune.report.findings import (
    find,
    in_words,
    milliseconds,
    percent,
    ratio_in_words,
    speeds,
    times,
    why_not_faster,
)
from bayesprune.report.reading import Layer, Run
from report.small_run import LATENCY, SUMMARY, compared


def run(**metrics):
    latency = metrics.pop("latency", None)
    return Run(Path("r"), "r", {}, metrics, latency=latency)


def test_sentence_of_a_finished_run():
    found = find(run(**SUMMARY))
    assert in_words(found) == (
        "25 times fewer weights, 4.0 times fewer multiplications, 3.0 times as fast on one CPU thread at batch 64 but "
        "not at batch 1; accuracy 89.1 % (was 90.4 %)."
    )
    assert why_not_faster(found) == [
        "Not faster at batch 1 (0.400 ms before, 0.400 ms after): it starts as many operations."
    ]


def test_sentence_without_speed_and_with_it():
    assert in_words(find(run(nonzero_fraction=0.5, macs_removed=0.0))) == (
        "2.0 times fewer weights, as many multiplications as before, speed not measured."
    )
    fast = LATENCY | {"comparisons": [compared(1, 2, 1), compared(64, 30, 2)], "settings": {"device": "cuda:0"}}
    assert "2.0 to 15 times as fast on a GPU" in in_words(find(run(latency=fast)))
    slow = LATENCY | {"comparisons": [compared(1, 1, 2, "r")], "settings": {"device": "cpu", "threads": 2}}
    assert in_words(find(run(latency=slow))) == "Not faster on 2 CPU threads."


def test_rounded_widths_that_help_are_mentioned():
    rounded = [compared(1, 1, 1, "r"), compared(1, 1.3, 1.0), compared(1, 1.6, 1.0), compared(2, 5, 1.0)]
    for one, name in zip(rounded, ("shrunk", "shrunk x8", "shrunk x16", "shrunk x16"), strict=True):
        one["network"]["name"] = name
    found = find(run(latency=LATENCY | {"comparisons": rounded}))
    assert [one.batch for one in found.speeds] == [1]
    (text,) = why_not_faster(found)
    assert "widths rounded up to multiples of 16 it is 1.6 times as fast" in text
    alone = find(run(latency=LATENCY | {"comparisons": []}))
    assert in_words(alone) == "Speed not compared with the dense network."


def test_nothing_known():
    found = find(run())
    assert in_words(found) == "Speed not measured."
    assert found.best_speed is None
    assert found.weights_left is None


def test_weights_are_counted_where_no_figure_says_how_many():
    live = torch.tensor([[True, False], [False, False]])
    layer = Layer("a", live.float(), live, dense_shape=(4, 4))
    found = find(Run(Path("r"), "r", {}, {}, layers=[layer]))
    assert (found.live, found.weights, found.weights_left) == (1, 16, 1 / 16)
    unknown = find(Run(Path("r"), "r", {}, {}, layers=[layer, Layer("b", live.float(), live)]))
    assert unknown.weights is None
    assert unknown.weights_left is None


def test_regression():
    text = in_words(find(run(rmse=0.123456, rmse_unpruned=0.2)))
    assert text.endswith("; rmse 0.1235 (was 0.2).")


@pytest.mark.parametrize("value", ["much", None, float("nan"), True, [1], {"a": 1}])
def test_files_may_hold_anything(value):
    strange = run(accuracy=value, nonzero_fraction=value, macs=value, macs_dense=value, status=value, bytes=value)
    found = find(strange)
    assert (found.score, found.weights_left, found.macs_left) == (None, None, None)
    assert speeds({"rows": [], "comparisons": value}) == ()
    assert speeds({"rows": [], "comparisons": [value]}) == ()


def test_numbers_for_people():
    assert [times(1 / 97.6), times(0.4), times(0.0)] == ["98", "2.5", "all gone"]
    assert [ratio_in_words(one) for one in (0.912, 1.04, 1.25, 9.96, 1234.5)] == ["0.91", "1.04", "1.2", "10", "1,234"]
    assert [percent(one) for one in (1.0, 0.64, 0.0374, 0.00589)] == ["100 %", "64.0 %", "3.74 %", "0.589 %"]
    assert [milliseconds(one) for one in (0.03, 44.12, 1641.0)] == ["0.030 ms", "44.1 ms", "1,641 ms"]
