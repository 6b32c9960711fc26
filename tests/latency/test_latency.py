"""Times of networks: statistics against numpy, the right side of a ratio, and words that say what was measured."""

import copy
import importlib.util
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayesprune.latency import LatencyError, Row, candidates, measure, measuring, statistics
from bayesprune.latency.candidates import Kind
from bayesprune.latency.reasons import Empty, overhead_ms, reason
from bayesprune.latency.report import UNSURE, Comparison
from bayesprune.latency.statistics import ratio_of_medians, summarise
from bayesprune.latency.work import Work, count_work
from bayesprune.runtime import native

EAGER = Kind("eager", "contiguous")
PLAIN = {"runtimes": ("eager",), "layouts": ("contiguous",), "threads": 1}


def layers(count: int, width: int = 256) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count)))


def small_convolutions() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))


def row(samples: list[float], network: str = "dense", batch: int = 1, kind: Kind = EAGER) -> Row:
    return Row(network, batch, kind, tuple(samples), summarise(samples), 1)


def test_summary_agrees_with_numpy() -> None:
    samples = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6, 5.3]
    summary = summarise(samples)
    assert summary.mean == pytest.approx(np.mean(samples))
    assert summary.median == 3.0
    assert summary.deviation == pytest.approx(np.std(samples, ddof=1))
    assert summary.smallest == 1.0
    assert summary.p90 == pytest.approx(np.percentile(samples, 90))


def test_interval_of_the_ratio_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        drift = np.exp(0.3 * generator.standard_normal(40))  # slows down both
        slow, fast = (median * drift * np.exp(0.05 * generator.standard_normal(40)) for median in (3.0, 1.0))
        _, low, high = ratio_of_medians(slow.tolist(), fast.tolist())
        covered += low <= 3 <= high
    assert 0.9 <= covered / 200 <= 1


def test_interval_knows_that_copies_differ() -> None:
    """Ten copies of each of two equal networks, each three per cent slower or faster for good, and noise far below."""
    generator = np.random.default_rng(2)
    covered = of_one_copy = 0
    for _ in range(200):
        times = (
            np.exp(0.03 * generator.standard_normal((1, 10)) + 0.002 * generator.standard_normal((10, 10)))
            for _ in range(2)
        )
        slow, fast = (one.ravel().tolist() for one in times)  # the copies take turns
        _, low, high = ratio_of_medians(slow, fast, places=(10, 10))
        covered += low <= 1 <= high
        _, low, high = ratio_of_medians(slow[::10], fast[::10])
        of_one_copy += low <= 1 <= high
    assert 0.9 <= covered / 200 <= 1
    assert of_one_copy / 200 < 0.2


@pytest.mark.parametrize(("rounds", "places"), [(11, 10), (20, 10), (8, 6), (7, 10), (9, 1)])
def test_as_many_copies_are_drawn_as_there_are(rounds: int, places: int) -> None:
    """Every one of them as often as any other, and of each the rounds that are its own."""
    drawn = statistics._drawn(rounds, places, np.random.default_rng(0))
    there = min(places, rounds)
    assert drawn.shape == (statistics.RESAMPLES, rounds)
    assert set(np.unique(drawn)) == set(range(rounds))
    by_draw = [drawn[:, first::there] % there for first in range(there)]  # one draw, used for one round or more
    assert all((one == one[:, :1]).all() for one in by_draw)
    first_of_each = np.stack([one[:, 0] for one in by_draw], 1)
    shares = np.bincount(first_of_each.ravel(), minlength=there) / first_of_each.size
    assert shares == pytest.approx([1 / there] * there, rel=0.1)


def test_intervals_of_different_numbers_of_copies() -> None:
    times = [1.0, 2.0, 3.0] * 4
    assert ratio_of_medians(times, times, places=(3, 3)) == pytest.approx((1, 1, 1))  # drawn together
    _, low, high = ratio_of_medians(times, times, places=(3, 1))
    assert low < 1 < high
    few = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]  # fewer rounds than copies
    assert ratio_of_medians(few, few[::-1], places=(10, 10)) == ratio_of_medians(few, few[::-1], places=(7, 7))


def test_common_drift_cancels_and_few_rounds_give_a_wide_interval() -> None:
    drift = [1.0, 2.0, 4.0, 1.0, 3.0, 8.0, 1.0]
    ratio, low, high = ratio_of_medians([2 * d for d in drift], drift)
    assert (ratio, low, high) == pytest.approx((2, 2, 2))
    ratio, low, high = ratio_of_medians([2.0, 4.0, 6.0], [1.0, 2.0, 4.0])
    assert (ratio, low, high) == pytest.approx((2, 0.5, 6))
    _, low, high = ratio_of_medians([2 * d for d in drift], drift, paired=False)
    assert low < 1.5 < 3 < high  # drift does not cancel for times taken apart
    with pytest.raises(ValueError, match="every round"):
        ratio_of_medians([1.0], [1.0, 2.0])


def test_ten_times_the_layers_take_about_ten_times_as_long() -> None:
    latency = measure(
        {"dense": layers(20), "shrunk": layers(2)}, torch.zeros(1, 256), batches=(64,), seconds=0.5, **PLAIN
    )
    (comparison,) = latency.comparisons
    assert comparison.faster
    assert 4 < comparison.ratio < 25
    assert comparison.low <= comparison.ratio <= comparison.high
    assert f"{comparison.ratio:.2f} times faster at batch 64" in latency.in_words()
    assert "on the CPU with 1 thread:" in latency.in_words()


def test_identical_networks_are_not_called_faster() -> None:
    network = layers(2)
    latency = measure(
        {"dense": network, "copy": copy.deepcopy(network)}, torch.zeros(1, 256), batches=(1, 64), seconds=0.5, **PLAIN
    )
    for comparison in latency.comparisons:
        assert not comparison.faster
        assert "it has no less to do, 131,072 multiplications per example against 131,072" in comparison.reason
    assert "not faster" in latency.in_words() or "slower" in latency.in_words()
    assert latency.in_words().count("batch") == 2


class Spy(nn.Linear):
    """Notes where its weights are when it runs."""

    seen: set[int]

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add(self.weight.data_ptr())
        return super().forward(x)

    def __deepcopy__(self, memo: dict[int, object]) -> "Spy":
        twin = Spy(self.in_features, self.out_features)
        twin.load_state_dict(self.state_dict())
        twin.seen = self.seen
        return twin


@pytest.mark.parametrize(("changes", "places"), [({}, 10), ({"MOST_BYTES": 8000}, 1), ({"MOST_PLACES": 7}, 7)])
def test_copies_at_different_places_take_turns(
    changes: dict[str, int], places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in changes.items():
        monkeypatch.setattr(measuring, name, value)
    networks = {name: Spy(16, 16) for name in ("dense", "copy")}
    for network in networks.values():
        network.seen = set()
    latency = measure(networks, torch.zeros(1, 16), batches=(4,), seconds=20, repeats=12, **PLAIN)
    assert [row.places for row in latency.rows] == [places, places]
    assert [len(network.seen) for network in networks.values()] == [places, places]
    assert latency.as_dict()["rows"][0]["places"] == places
    assert Row.from_dict(latency.rows[0].as_dict()) == latency.rows[0]


def test_few_places_are_none_and_long_calls_have_one() -> None:
    lanes = [measuring._Lane(row([1.0]), [Empty(1)] * count) for count in (10, 5)]
    measuring._as_many_places(lanes)
    assert [len(lane.runs) for lane in lanes] == [1, 1]
    network = {"a": layers(1, 8)}
    latency = measure(network, torch.zeros(1, 8), batches=(4,), seconds=1e-5, repeats=3, **PLAIN)
    assert latency.rows[0].places == 1


def test_a_copy_that_fails_leaves_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(measuring, "elsewhere", no_memory)
    latency = measure({"a": layers(1, 8)}, torch.zeros(1, 8), batches=(4,), seconds=0.1, repeats=8, **PLAIN)
    assert (latency.rows[0].error, latency.rows[0].places) == (None, 1)
    monkeypatch.setattr(measuring, "elsewhere", lambda *_: lambda: torch.zeros(4, 8))  # not what the network says
    latency = measure({"a": layers(1, 8)}, torch.zeros(1, 8), batches=(4,), seconds=0.1, repeats=8, **PLAIN)
    assert (latency.rows[0].error, latency.rows[0].places) == (None, 1)


def test_no_more_copies_than_rounds() -> None:
    latency = measure({"a": layers(1, 8)}, torch.zeros(1, 8), batches=(4,), seconds=20, repeats=8, **PLAIN)
    assert (len(latency.rows[0].samples), latency.rows[0].places) == (8, 8)


class Stateful(nn.Linear):
    """Its state is not of tensors alone."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: object) -> None:
        assert state == {"version": 3}


def test_a_state_that_is_no_tensor_is_measured_as_well() -> None:
    latency = measure({"a": Stateful(8, 8)}, torch.zeros(1, 8), batches=(4,), seconds=0.1, repeats=8, **PLAIN)
    assert latency.rows[0].error is None


@pytest.mark.skipif(native.library() is None, reason="the native engine is not built: no C compiler")
def test_the_engine_elsewhere_is_the_same() -> None:
    x = torch.randn(4, 8)
    here = candidates.fastest_native(layers(2, 8), x)
    there = here.elsewhere()
    assert torch.equal(here(), there())
    assert there.bytes > 4 * 2 * 8 * 8
    weights = [next(iter(one._compiled._programs.values()))._parts[5].data_ptr() for one in (here, there)]
    assert weights[0] != weights[1]


def test_calls_that_are_asked_for_are_made_whatever_the_time():
    networks = {"a": layers(1, 8), "b": layers(20, 8)}
    latency = measure(
        networks,
        torch.zeros(1, 8),
        batches=(4,),
        runtimes=("eager",),
        threads=1,
        seconds=1e-4,
        repeats=3,
        fewest_calls=50,
    )
    assert all(50 <= len(row.samples) * row.calls < 500 for row in latency.rows)


def test_every_row_has_its_figures_and_json_holds_plain_types() -> None:
    seen: list[tuple[str, int, int]] = []
    latency = measure(
        {"a": small_convolutions()},
        torch.zeros(1, 3, 8, 8),
        batches=(1, 4),
        runtimes=("eager", "onnx", "cuda_graph"),  # the last is left out on the CPU
        threads=1,
        seconds=0.05,
        repeats=5,
        progress=lambda text, done, total: seen.append((text, done, total)),
    )
    ways = ["eager contiguous", "eager channels_last", "onnx"]
    assert [(r.batch, str(r.kind)) for r in latency.rows] == [(b, way) for b in (1, 4) for way in ways]
    for r in latency.rows:
        assert r.error is None
        assert r.summary == summarise(r.samples)
        assert 3 <= len(r.samples) <= 5
        assert r.examples_per_second == pytest.approx(1e3 * r.batch / np.median(r.samples))
    assert json.loads(json.dumps(latency.as_dict())) == latency.as_dict()
    assert latency.as_dict()["rows"][0]["milliseconds"]["median"] == np.median(latency.rows[0].samples)
    assert latency.as_dict()["versions"].keys() >= {"torch", "onnxruntime"}
    assert latency.settings["threads"] == 1
    assert latency.table().count("*") == 2
    assert "a takes" in latency.in_words()
    done = [d for _, d, _ in seen]
    assert done == sorted(done)
    assert seen[-1][1:] == (12, 12)


def test_networks_threads_and_inputs_stay_as_they_were() -> None:
    network = small_convolutions().to(memory_format=torch.channels_last).double()
    network[1].eval()
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    threads, example = torch.get_num_threads(), torch.ones(1, 3, 8, 8)
    measure({"a": network}, example, batches=(2,), runtimes=("eager",), threads=1, seconds=0.02, repeats=3)
    assert [module.training for module in network] == [True, False, True, True, True]
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not network[0].weight.is_contiguous()
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, state[name])
        assert tensor.dtype == state[name].dtype
    assert all(p.requires_grad and p.grad is None for p in network.parameters())
    assert torch.get_num_threads() == threads
    assert torch.equal(example, torch.ones(1, 3, 8, 8))


def test_wrong_outputs_are_an_error_and_not_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    right = candidates.run_session
    monkeypatch.setattr(candidates, "run_session", lambda session, x: right(session, x) * 1.01)
    latency = measure(
        {"a": layers(1, 8)}, torch.zeros(1, 8), batches=(4,), runtimes=("eager", "onnx"), seconds=0.02, repeats=3
    )
    eager, onnx = latency.rows
    assert eager.error is None
    assert onnx.error == "wrong outputs, off by 0.01 of the largest; allowed is 0.001"
    assert onnx.summary is None
    assert latency.best("a", 4) is eager
    assert "not measured: wrong outputs" in latency.table()
    json.dumps(latency.as_dict(), allow_nan=False)


def test_a_runtime_that_is_missing_is_named_and_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    def no_compiler(*args: object, **kwargs: object) -> object:
        raise RuntimeError("no C++ compiler found\nand pages more")

    monkeypatch.setattr(torch, "compile", no_compiler)
    latency = measure({"a": layers(1, 8), "b": layers(1, 8)}, torch.zeros(1, 8), batches=(4,), seconds=0.02, repeats=3)
    errors = {r.kind.runtime: r.error for r in latency.rows}
    assert errors["eager"] is None
    assert errors["compile"] == "RuntimeError: no C++ compiler found"
    assert "pip install 'bayesprune[onnx]'" in str(errors["onnx"])
    assert len(latency.comparisons) == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.skipif(importlib.util.find_spec("torch._inductor") is None, reason="no compiler in this torch")
def test_compiled_networks_are_really_compiled_and_right() -> None:
    many = {str(i): layers(1, 8) for i in range(2)}
    latency = measure(many, torch.zeros(1, 8), batches=(4,), runtimes=("compile",), threads=1, seconds=0.02, repeats=3)
    assert [r.error for r in latency.rows] == [None, None]
    assert all(r.preparation_seconds > 0.01 for r in latency.rows)


def test_each_compiled_network_has_code_of_its_own() -> None:
    first, second = (candidates._own_function(nn.Identity()) for _ in range(2))
    assert first.__code__ is not second.__code__
    assert first.__code__ != second.__code__
    assert first(torch.ones(2)).sum() == 2


def test_long_calls_stop_after_three_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "warm_up", lambda run, device, seconds: 1.0)
    latency = measure({"a": layers(1, 8)}, torch.zeros(1, 8), batches=(1,), seconds=1e-6, **PLAIN)
    assert len(latency.rows[0].samples) == 3
    assert latency.rows[0].calls == 1


def test_work_is_counted_as_by_hand() -> None:
    network = small_convolutions().eval()
    work = count_work(network, torch.zeros(1, 3, 8, 8))
    assert work.macs == 36 * 4 * 27 + 144 * 5
    assert work.operations == 4  # conv, norm, relu, linear; flatten is a view
    weights = sum(t.numel() * t.element_size() for t in network.state_dict().values())
    assert work.weight_bytes == weights
    assert work.bytes(10) == weights + 10 * work.activation_bytes
    assert work.activation_bytes >= 4 * (3 * 144 + 5)


def test_reasons_follow_from_the_numbers() -> None:
    before, after = Work(11, 400_000, 240_000, 70_000), Work(11, 100_000, 60_000, 35_000)
    dense, shrunk = row([0.050] * 7), row([0.049] * 7, "shrunk")
    launch = reason(dense, shrunk, before, after, overhead=0.040)
    assert "mostly that of starting 11 operations (the same number as before)" in launch
    assert "0.040 of the 0.049 ms" in launch
    narrow = reason(dense, shrunk, before, after, overhead=0.010)
    assert "4.00 times fewer multiplications" in narrow
    assert "8.00 billion" in narrow  # 400,000 in 0.05 ms
    assert "2.04 billion" in narrow
    assert "0.010 ms of it are the start of 11 operations" in narrow
    assert "it has no less to do" in reason(dense, shrunk, before, before, overhead=0.040)
    assert reason(row([0.09] * 7), shrunk, before, after, 0.040) == UNSURE


def test_words_tell_faster_slower_and_unsure_apart() -> None:
    def words(slow: list[float], fast: list[float], reason: str = "because") -> str:
        pair = row(slow), row(fast, "shrunk", kind=Kind("onnx", "contiguous"))
        return Comparison(1, *pair, *ratio_of_medians(slow, fast), reason=reason).in_words()

    assert words([2.0] * 7, [1.0] * 7).startswith(
        "2.00 times faster at batch 1 (2.000 ms in eager contiguous -> 1.000 ms in onnx; 95 % interval 2.00 to 2.00)"
    )
    assert words([1.0] * 7, [2.0] * 7).startswith("slower at batch 1, 2.00 times as long")
    assert words([1.04] * 7, [1.0] * 7).startswith("not faster at batch 1 (ratio 1.04")
    unsure = [1.0, 3.0, 1.0, 3.0, 1.2, 3.0, 1.1, 0.9], [1.0, 1.1, 1.0, 3.0, 1.0, 3.0, 0.9, 1.0]
    assert words(*unsure).startswith("not faster")
    assert words(*unsure).endswith("because")
    assert words(*unsure, UNSURE).startswith("probably faster at batch 1 (ratio 1.15, ")
    assert "), but the times vary too much to be sure; measure longer" in words(*unsure, UNSURE)


def test_overhead_of_more_operations_is_larger() -> None:
    cpu = torch.device("cpu")
    assert overhead_ms(200, "eager", cpu) > 5 * overhead_ms(4, "eager", cpu) > 0
    assert torch.equal(Empty(3)(torch.tensor([[2.0]])), torch.tensor([[0.0]]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batches": ()}, "batches"),
        ({"batches": (0,)}, "batches"),
        ({"seconds": 0}, "seconds must be above 0"),
        ({"repeats": 2}, "repeats must be at least 3, got 2"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"runtimes": ("tensorrt",)}, "unknown runtime 'tensorrt'"),
        ({"layouts": ("nhwc",)}, "unknown layout 'nhwc'"),
        ({"runtimes": ("cuda_graph",)}, "none of the runtimes"),
    ],
)
def test_arguments_that_make_no_sense_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(LatencyError, match=message):
        measure({"a": layers(1, 8)}, torch.zeros(1, 8), **changes)  # type: ignore[arg-type]


def test_inputs_that_do_not_fit_are_named() -> None:
    with pytest.raises(LatencyError, match=r"no network"):
        measure({}, torch.zeros(1, 8))
    with pytest.raises(LatencyError, match=r"a cannot take inputs of shape \(1, 9\)"):
        measure({"a": layers(1, 8)}, torch.zeros(1, 9))

    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(LatencyError, match="must return one tensor, got tuple"):
        measure({"a": Two()}, torch.zeros(1, 9))


@pytest.mark.gpu
def test_on_cuda_a_graph_is_the_fastest_way_for_a_deep_narrow_network() -> None:
    before = torch.backends.cudnn.conv.fp32_precision
    deep = nn.Sequential(*(layer for _ in range(30) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())))
    latency = measure(
        {"dense": deep, "shrunk": deep[:6]},
        torch.zeros(1, 8, 16, 16),
        device="cuda",
        runtimes=("eager", "cuda_graph", "onnx"),
        seconds=0.3,
    )
    assert [r.error for r in latency.rows] == [None] * 16
    best = latency.best("dense", 1)
    assert best is not None
    assert best.kind.runtime == "cuda_graph"
    assert all(c.faster for c in latency.comparisons)
    assert latency.settings["tf32"] is False
    assert "gpu" in latency.hardware
    assert torch.backends.cudnn.conv.fp32_precision == before


@pytest.mark.skipif(native.library() is None, reason="the native engine is not built: no C compiler")
def test_the_native_engine_is_timed_beside_torch():
    """Right answers are timed; a network that the engine cannot run is a row that says what is missing."""
    able = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    unable = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    options = {"batches": (20,), "runtimes": ("eager", "native"), "threads": 1, "seconds": 0.02, "repeats": 3}
    latency = measure({"able": able, "unable": unable}, torch.zeros(1, 1, 8, 8), **options)
    found = {row.network: row for row in latency.rows if row.kind.runtime == "native"}
    assert found["able"].error is None
    assert found["able"].median > 0
    assert "Sigmoid" in found["unable"].error
    assert str(found["able"].kind) == "native"
    comparison = Comparison(20, found["able"], found["able"], 2.0, 1.9, 2.1)
    words = replace(latency, comparisons=(comparison,)).in_words()
    assert "native: bayesprune.runtime.compile(network, x)." in words
