"""`bayesprune reproduce acceleration`: networks are kept, found and timed; tables and pictures of made-up times."""

import json
from pathlib import Path

import pytest
import torch
from made_up_rows import CONFIGS
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bayesprune import artefact, data, models
from bayesprune.cli import job_runner
from bayesprune.latency import measure
from bayesprune.latency.candidates import prepare
from bayesprune.reproduce import ROWS, RowFiles, jobs, run_job, write_results_page
from bayesprune.reproduce.acceleration import (
    Machine,
    NetworkWork,
    acceleration,
    bandwidth,
    kept_networks,
    merge_entries,
    peak_flops,
    with_earlier,
    work_of,
    write_entry,
)
from bayesprune.reproduce.acceleration.figure import bars
from bayesprune.reproduce.acceleration.markdown import acceleration_markdown
from bayesprune.reproduce.paper import FIGURE9
from bayesprune.runs import RunError
from bayesprune.turbo import DivergedError

SCALE = 0.02
METHODS = ("unpruned", "magnitude")
FOLDER = Path("out/rows/digits-trial-0.02")
CPU = torch.device("cpu")
TABLE2 = (
    *("--row", "digits", "--protocols", "best", "--seeds", "0", "--epochs-scale", SCALE, "--output", "out", "--quiet"),
    *("--methods", ",".join(METHODS)),
)
QUICK = ("--row", "digits", "--device", "cpu", "--epochs-scale", SCALE, "--networks", "out", "--output", "acc")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Rows and networks of two methods, computed once."""
    files = RowFiles(tmp_path_factory.mktemp("trained"), "digits", SCALE)
    work = jobs(ROWS["digits"], METHODS, ["best"], [0], CONFIGS, epochs_scale=SCALE)
    loaded = data.load("digits", validation=work[0].settings.validation, seed=0)
    for job in work:
        files.write(job, run_job(job, loaded, keep=files.network(job)))
    return {path.name: path.read_bytes() for path in files.folder.iterdir()}


@pytest.fixture
def rows(trained):
    """The same in the folder of a test."""
    FOLDER.mkdir(parents=True)
    for name, content in trained.items():
        (FOLDER / name).write_bytes(content)


@pytest.fixture
def quick_machine(monkeypatch):
    """The roofline by small products and copies."""
    monkeypatch.setattr("bayesprune.reproduce.acceleration.roofline.SIDES", {"cpu": (256,)})
    monkeypatch.setattr("bayesprune.reproduce.acceleration.roofline.COPIED", {"cpu": 2**22})


def test_a_row_keeps_its_network(rows):
    for method in METHODS:
        row = json.loads((FOLDER / f"{method}-best-0.json").read_text())
        path = FOLDER / f"{method}-best-0.safetensors"
        found = artefact.read(path)
        assert (found.config["method"], found.config["settings"]) == (method, row["settings"])
        assert found.metrics["accuracy"] == row["accuracy"]
        network, loaded = artefact.load(path), data.load("digits")
        with torch.no_grad():
            right = (network(loaded.test.x).argmax(1) == loaded.test.y).float().mean()
        assert float(right) == pytest.approx(row["accuracy"])
        assert row["bytes"] == artefact.size(network, example_shape=loaded.input_shape)
        assert row["bytes"] < path.stat().st_size  # config and metrics are not counted


def test_rows_without_a_network_are_finished_and_computed_again_if_asked_for(table2, rows, monkeypatch):
    network = FOLDER / "magnitude-best-0.safetensors"
    network.unlink()
    out = table2(*TABLE2, "--list")[1]
    assert "stays     3 epochs  magnitude-best-0: finished (no network kept)" in out
    assert "unpruned-best-0: finished\n" in out
    assert (
        "runs      3 epochs  magnitude-best-0: finished (no network kept)"
        in table2(*TABLE2, "--list", "--again-without-network")[1]
    )
    before = (FOLDER / "unpruned-best-0.json").stat().st_mtime_ns
    assert table2(*TABLE2, "--again")[0] == 0
    assert not network.exists()
    assert table2(*TABLE2, "--again-without-network")[0] == 0
    assert network.exists()
    assert (FOLDER / "unpruned-best-0.json").stat().st_mtime_ns == before
    monkeypatch.setattr(job_runner, "run_job", None)
    assert table2(*TABLE2, "--again-without-network")[0] == 0  # nothing is left to do


def test_a_job_that_fails_keeps_no_network(rows, monkeypatch):
    def diverge(*_, **__):
        raise DivergedError("the loss became nan")

    monkeypatch.setattr("bayesprune.reproduce.running.baselines.run", diverge)
    (job,) = jobs(ROWS["digits"], ["magnitude"], ["best"], [0], CONFIGS, epochs_scale=SCALE)
    files = RowFiles(Path("out"), "digits", SCALE)
    assert files.network(job).exists()  # of a run before
    files.write(job, run_job(job, data.load("digits", validation=0.1, seed=0), keep=files.network(job)))
    assert not files.network(job).exists()
    assert files.standing(job).state.value == "failed before"
    left_out = kept_networks(files, METHODS, 0, epochs_scale=SCALE).left_out
    assert left_out == {"magnitude": "failed: the loss became nan"}


def test_two_methods_from_rows_to_a_report(reproduce, rows, quick_machine):
    out = reproduce("acceleration", *QUICK, "--list")[1]
    assert "kept       magnitude: out/rows/digits-trial-0.02/magnitude-best-0.safetensors" in out
    assert "left out   ours: not trained" in out
    assert "to do      acc/digits-trial-0.02-cpu.json" in out
    options = ("--batch", "64", "--threads", "1", "--seconds", "0.01", "--passes", "7", "--runtimes", "eager,native")
    code, out, err = reproduce("acceleration", *QUICK, *options)
    assert (code, err) == (0, "")
    assert "measuring  native" in out
    entry = json.loads(Path("acc/digits-trial-0.02-cpu.json").read_text())
    assert (entry["batch"], entry["device"], entry["paper"]) == (64, "cpu", None)
    assert set(entry["methods"]) == set(METHODS)
    assert entry["left_out"]["ours"] == "not trained"
    assert {way["runtime"] for way in entry["ways"] if not way["error"]} >= {"eager"}
    for way in entry["ways"]:
        assert way["error"] or way["passes"] >= 7
    for method, one in entry["methods"].items():
        mine = [way for way in entry["ways"] if way["network"] == method and not way["error"]]
        fastest = min(way["milliseconds"]["median"] for way in mine)
        assert one["best"]["milliseconds"]["median"] == fastest
        dense = entry["methods"]["unpruned"]["best"]["milliseconds"]["median"]
        assert one["ratio"] == pytest.approx(dense / fastest)
        assert one["interval"][0] <= one["ratio"] <= one["interval"][1]
        assert one["roofline"]["times_bound"] == pytest.approx(fastest / one["roofline"]["bound_ms"])
        row = json.loads((FOLDER / f"{method}-best-0.json").read_text())
        assert one["live_macs"] <= row["macs_shrunk"]
        assert one["accuracy"] == row["accuracy"]
    assert entry["methods"]["unpruned"]["ratio"] == 1
    assert 0 < entry["methods"]["unpruned"]["live_macs"] < row["macs_dense"]  # products with padding do not count
    assert "these are not results" in Path("acc/digits-trial-0.02-cpu.md").read_text()
    assert Path("acc/digits-trial-0.02-cpu.png").read_bytes().startswith(b"\x89PNG")
    assert not Path("acc.json").exists()  # trials are no results
    code, _, err = reproduce("acceleration", *QUICK, "--merge")
    assert code == 1
    assert "holds no measurement yet" in err
    assert "measured   acc/digits-trial-0.02-cpu.json" in reproduce("acceleration", *QUICK, "--list")[1]
    (FOLDER / "unpruned-best-0.safetensors").unlink()
    assert "outdated   acc/digits-trial-0.02-cpu.json" in reproduce("acceleration", *QUICK, "--list")[1]


def test_a_study_that_was_stopped_goes_on_with_the_first_way_that_is_missing(
    reproduce, rows, quick_machine, monkeypatch
):
    options = ("--batch", "64", "--threads", "1", "--seconds", "0.01", "--passes", "3", "--runtimes", "eager")
    timed, stop_at = [], ["channels_last"]

    def once(networks, example, *, layouts, **others):
        if layouts[0] in stop_at:
            raise KeyboardInterrupt
        timed.append(layouts[0])
        return measure(networks, example, layouts=layouts, **others)

    monkeypatch.setattr("bayesprune.reproduce.acceleration.measuring.measure", once)
    assert reproduce("acceleration", *QUICK, *options)[0] != 0
    parts = Path("acc/parts/digits-trial-0.02-cpu")
    assert [path.name for path in parts.iterdir()] == ["eager-contiguous.json"]
    assert not Path("acc/digits-trial-0.02-cpu.json").exists()
    first = json.loads((parts / "eager-contiguous.json").read_text())
    stop_at.clear()
    (parts / ".eager-channels_last.json.1-ab.tmp").touch()  # as kill -9 leaves
    code, out, _ = reproduce("acceleration", *QUICK, *options)
    assert code == 0
    assert "measured   eager contiguous before\nmeasuring  eager channels_last" in out
    assert timed == ["contiguous", "channels_last"]
    assert not parts.exists()
    entry = json.loads(Path("acc/digits-trial-0.02-cpu.json").read_text())
    kept = {row["network"]: row["milliseconds"]["median"] for row in first["rows"]}
    ways = {way["network"]: way for way in entry["ways"] if way["layout"] == "contiguous"}
    assert {name: way["milliseconds"]["median"] for name, way in ways.items()} == pytest.approx(kept)


@pytest.mark.parametrize("change", ["passes", "network", "damage"])
def test_a_way_that_was_measured_otherwise_is_measured_again(rows, quick_machine, tmp_path, change):
    files, folder = RowFiles(Path("out"), "digits", SCALE), tmp_path / "parts"
    options = {"runtimes": ("native",), "batch": 8, "seconds": 0.01, "threads": 1, "folder": folder}

    def study(passes):
        told = []
        kept = kept_networks(files, METHODS, 0, epochs_scale=SCALE)
        acceleration(ROWS["digits"], kept, CPU, passes=passes, tell=told.append, **options)
        return told

    assert study(3) == ["measuring  native"]
    assert study(3) == ["measured   native before"]
    if change == "network":
        path = FOLDER / "magnitude-best-0.safetensors"
        other = artefact.load(path)
        with torch.no_grad():
            next(other.parameters()).mul_(2)
        found = artefact.read(path)
        artefact.save(path, other, example_shape=found.example_shape, config=found.config, classes=found.classes)
    elif change == "damage":
        (folder / "native.json").write_text('{"asked": ')
    assert study(4 if change == "passes" else 3) == ["measuring  native"]


def test_a_way_that_failed_is_tried_again(rows, quick_machine, tmp_path, monkeypatch):
    kept = kept_networks(RowFiles(Path("out"), "digits", SCALE), METHODS, 0, epochs_scale=SCALE)
    options = {"runtimes": ("eager", "native"), "batch": 8, "seconds": 0.01, "passes": 1, "folder": tmp_path / "parts"}
    full = [True]

    def no_memory(kind, copies, x):
        if full[0] and kind.runtime == "native":
            raise MemoryError("no memory left")
        return prepare(kind, copies, x)

    monkeypatch.setattr("bayesprune.latency.measuring.prepare", no_memory)
    entry = acceleration(ROWS["digits"], kept, CPU, **options)
    assert {way["error"] for way in entry["ways"] if way["runtime"] == "native"} == {"MemoryError: no memory left"}
    full[0], told = False, []
    entry = acceleration(ROWS["digits"], kept, CPU, tell=told.append, **options)
    assert told[0] == "measured   eager contiguous before"
    assert told[-1] == "measuring  native"
    assert not any(way["error"] for way in entry["ways"])


def test_what_cannot_be_measured_is_said(reproduce, rows):
    (FOLDER / "magnitude-best-0.safetensors").unlink()
    code, _, err = reproduce("acceleration", *QUICK, "--methods", "magnitude")
    assert code == 1
    assert "magnitude: no network kept" in err
    assert "--again-without-network" in err
    assert "unknown method 'snap'" in reproduce("acceleration", *QUICK, "--methods", "snap")[2]


def test_a_network_of_other_settings_is_left_out(rows):
    path = FOLDER / "magnitude-best-0.json"
    row = json.loads(path.read_text())
    row["settings"]["learning_rate"] = 0.5
    path.write_text(json.dumps(row))
    kept = kept_networks(RowFiles(Path("out"), "digits", SCALE), METHODS, 0, epochs_scale=SCALE)
    assert [one.method for one in kept.networks] == ["unpruned"]
    assert "other settings" in kept.left_out["magnitude"]


def test_live_macs_are_nonzeros_times_their_uses():
    network = nn.Sequential(nn.Conv2d(1, 3, 5, stride=2), nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(484, 5)).eval()
    x = torch.zeros(1, 1, 28, 28)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        network(x)
    assert 2 * work_of(network, x).live_macs == counter.get_total_flops()
    small = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    with torch.no_grad():
        small[0].weight[0] = 0
        small[2].weight[:, :5] = 0
    work = work_of(small, torch.zeros(1, 1, 4, 4))
    # 9 live weights used at 4 places; 9 live weights used once.  18 nonzeros and 5 biases; 16 inputs and 3 outputs.
    assert work == NetworkWork(9 * 4 + 9, 4 * (18 + 5), 4 * (16 + 3))
    assert not small[0]._forward_hooks


def test_products_with_padding_do_not_count():
    network = models.create("lenet5", (1, 28, 28), 10, generator=torch.Generator().manual_seed(0)).eval()
    inside = sum(0 <= row + tap < 28 for row in range(28) for tap in range(-2, 3))  # along one axis
    padded = 6 * 25 * 28**2  # of the first conv; the second has no padding
    assert work_of(network, torch.zeros(1, 1, 28, 28)).live_macs == 416520 - padded + 6 * inside**2


def test_the_bound_is_the_larger_of_two_times():
    machine = Machine(flops=100.0, bandwidth=10.0)
    assert machine.bound(NetworkWork(live_macs=50, weight_bytes=6, example_bytes=2), 2) == (2.0, "arithmetic")
    assert machine.bound(NetworkWork(live_macs=5, weight_bytes=6, example_bytes=2), 2) == (1.0, "memory")


def test_the_machine_is_plausible():
    assert 1e8 < peak_flops(CPU, (128, 256)) < 1e14
    assert 1e8 < bandwidth(CPU, 2**22) < 1e13


@pytest.mark.gpu
def test_the_gpu_is_plausible():
    device = torch.device("cuda")
    assert 1e11 < peak_flops(device, (2048,)) < 1e16
    assert 1e10 < bandwidth(device, 2**28) < 1e14


def timed(ratio, low, high, ms, runtime="native", layout="contiguous"):
    """A network in a way."""
    times = {"median": ms, "deviation": 0.5, "mean": ms, "smallest": ms, "p90": ms}
    way = {"runtime": runtime, "layout": layout, "milliseconds": times, "passes": 40, "error": None}
    return way | {"ratio": ratio, "interval": [low, high], "same_way": {"ratio": 2.0, "interval": [1.9, 2.1]}}


def an_entry(row="lenet5", device="cpu", ours=4.0, **values):
    """A measurement that nobody has made: the dense network takes 40 ms."""

    def method(ratio, low, high, times_bound):
        roofline = {"bound_ms": 40 / ratio / times_bound, "limit": "memory", "times_bound": times_bound}
        figures = {"accuracy": 0.9, "nonzero_fraction": 0.01, "macs_removed": 0.7, "live_macs": 1234567}
        found = timed(ratio, low, high, 40 / ratio)
        return figures | {"best": found, "ratio": ratio, "interval": [low, high], "roofline": roofline}

    failed = timed(1, 1, 1, 1, "onnx") | {"milliseconds": None, "error": "no ONNX here"}
    return {
        "row": row,
        "title": ROWS[row].title,
        "device": device,
        "seed": 0,
        "epochs_scale": 1.0,
        "batch": 10000,
        "paper": FIGURE9[device].get(row),
        "dense": "made up",
        "networks": {"unpruned": "0", "ours": "1", "polarization": "2"},
        "left_out": {"snip": "not trained", "l1": "not trained", "group-norm": "no network kept"},
        "machine": {"flops": 2e11, "bandwidth": 3e10},
        "settings": {"threads": 2},
        "methods": {
            "unpruned": method(1.0, 1.0, 1.0, 0.9),
            "ours": method(ours, ours - 0.5, ours + 0.5, 5.0),
            "polarization": method(2.0, 0.9, 2.2, 6.0),
        },
        "ways": [
            {**timed(0.5, 0.4, 0.6, 80.0, "eager"), "network": "unpruned"},
            {**timed(1.0, 0.9, 1.1, 40.0, "eager"), "network": "ours"},
            {**failed, "network": "ours"},
        ],
        "hardware": {"processor": "none"},
        "versions": {"python": "3"},
    } | values


def test_the_tables_of_made_up_times():
    text = acceleration_markdown([an_entry(), an_entry(device="cuda", ours=1.5)])
    lenet = "LeNet-5 on Fashion-MNIST"
    assert f"| {lenet} | CPU | 4.00 (3.50 to 4.50) | 8.00 | `polarization` 2.00 (0.90 to 2.20) | 1.50 |" in text
    assert f"| {lenet} | GPU | 1.50 (1.00 to 2.00) | 3.00 | `polarization` 2.00 (0.90 to 2.20) | 2.85 |" in text
    assert (
        "| `ours` | 90.00 | 1.00 | 70.00 | 1,234,567 | native | 10.0 ± 0.500 | 40 | 4.00 (3.50 to 4.50) "
        "| 5.0 (memory, 2.00 ms) |"
    ) in text
    assert "| eager | 80.0 ± 0.500 | 40.0 ± 0.500 | 40 | 1.00 (0.90 to 1.10) | 2.00 (1.90 to 2.10) |" in text
    assert "| onnx | – | – | not measured: no ONNX here | – | – |" in text
    assert "- `ours` is 4.00 times faster, above the paper's 1.50" in text
    assert "- `ours` is 1.50 times faster, below the paper's 2.85" in text
    assert "- faster than `ours`: `polarization` 2.00 (0.90 to 2.20)" in text
    assert "- not surely faster than the dense network: `polarization`\n" in text
    assert "- not surely faster than the dense network: `ours`, `polarization`\n" in text
    assert "- below the bound: `unpruned`; the GEMM" in text
    assert "- left out: `snip`, `l1` (not trained)\n- left out: `group-norm` (no network kept)" in text
    assert "peak 200 GFLOP/s (GEMM), bandwidth 30.0 GB/s (copy)" in text
    assert "not results" not in text


def without_ours(factor):
    """A later measurement, without `ours`; everything takes `factor` times as long."""
    entry = an_entry(padding_counts=False)
    for one in entry["methods"].values():
        one["best"]["milliseconds"]["median"] *= factor
    ways = [way for way in entry["ways"] if way["network"] != "ours"]
    for way in ways:
        way["milliseconds"]["median"] *= factor
    methods = {name: one for name, one in entry["methods"].items() if name != "ours"}
    networks = {name: one + "b" for name, one in entry["networks"].items() if name != "ours"}
    return entry | {"methods": methods, "ways": ways, "networks": networks, "left_out": {"ours": "no network kept"}}


def test_what_an_earlier_run_measured_stays_with_its_own_dense_network():
    both = with_earlier(without_ours(3), an_entry())
    assert list(both["methods"]) == ["unpruned", "ours", "polarization"]
    assert [name for name, one in both["methods"].items() if "earlier" in one] == ["ours"]
    assert both["methods"]["unpruned"]["best"]["milliseconds"]["median"] == 120
    assert both["networks"] == {"unpruned": "0b", "ours": "1", "polarization": "2b"}
    assert both["left_out"] == {}
    text = acceleration_markdown([both])
    assert "| CPU | 4.00 (3.50 to 4.50) | 8.00 | `polarization` 2.00" in text  # 80 over 10 ms, not 240
    assert "| `ours` † | 90.00 |" in text
    assert "| `polarization` | 90.00 |" in text
    assert "| eager | 80.0 ± 0.500 | 40.0 ± 0.500 | 40 | 1.00 (0.90 to 1.10) | 2.00 (1.90 to 2.10) |" in text
    assert "- † of an earlier run, whose dense network took 40.0 ms: `ours`; products with the zeros of padding" in text
    again = with_earlier(without_ours(5), both)
    assert again["methods"]["ours"]["earlier"]["dense_ms"] == 40  # not that of the run between
    assert [way for way in again["ways"] if way["network"] == "ours"] == an_entry()["ways"][1:]


def test_measurements_of_other_batches_are_not_put_together():
    with pytest.raises(RunError, match="has batch 64, this one 10000; they cannot be put together"):
        with_earlier(an_entry(), an_entry(batch=64))


def test_networks_that_are_gone_keep_their_times_if_asked_for(reproduce, rows, quick_machine):
    options = ("--batch", "64", "--threads", "1", "--seconds", "0.01", "--passes", "1", "--runtimes", "eager")
    path = Path("acc/digits-trial-0.02-cpu.json")
    assert reproduce("acceleration", *QUICK, *options)[0] == 0
    first = json.loads(path.read_text())["methods"]["magnitude"]
    found = json.loads(path.read_text())
    found["methods"]["snip"] = found["methods"].pop("magnitude")  # a method whose network nobody has any more
    path.write_text(json.dumps(found))
    assert reproduce("acceleration", *QUICK, *options, "--keep-others")[0] == 0
    after = json.loads(path.read_text())
    assert list(after["methods"]) == ["unpruned", "snip", "magnitude"]
    assert after["methods"]["snip"] == first | {"earlier": after["methods"]["snip"]["earlier"]}
    assert "| `snip` † |" in path.with_suffix(".md").read_text()
    assert reproduce("acceleration", *QUICK, *options)[0] == 0
    assert list(json.loads(path.read_text())["methods"]) == ["unpruned", "magnitude"]


def test_the_bars_are_methods_and_then_our_ways():
    assert [label for label, *_ in bars(an_entry())] == [
        "ours (native)",
        "polarization (native)",
        "ours only in eager",
    ]


def test_measurements_are_merged_in_order_and_shown_on_the_page():
    output = Path("results/acceleration")
    rounded = an_entry(device="cuda", tf32=True)
    for entry in (an_entry("vgg11"), rounded, an_entry(device="cuda"), an_entry(), an_entry(epochs_scale=0.5)):
        written = write_entry(entry, output)
        assert [path.suffix for path in written] == [".json", ".md", ".png"]
    assert [path.name for path in merge_entries(output)] == [f"acceleration.{end}" for end in ("json", "md", "png")]
    merged = json.loads(Path("results/acceleration.json").read_text())
    places = [(one["row"], one["device"], one.get("tf32", False)) for one in merged]
    assert places == [
        ("lenet5", "cpu", False),
        ("lenet5", "cuda", False),
        ("lenet5", "cuda", True),
        ("vgg11", "cpu", False),
    ]
    assert json.loads((output / "lenet5-cuda-tf32.json").read_text())["tf32"] is True
    write_results_page(Path("results"), Path("docs"))
    text = Path("docs/results.md").read_text()
    assert "## Acceleration (Fig. 9 of the paper)" in text
    assert "### VGG-11 on CIFAR-100, CPU, batch 10,000" in text
    assert "### LeNet-5 on Fashion-MNIST, GPU, TF32, batch 10,000" in text
    assert "![Acceleration (Fig. 9 of the paper)](figures/acceleration.png)" in text
    assert Path("docs/figures/acceleration.png").read_bytes() == Path("results/acceleration.png").read_bytes()
    (output / "alexnet-cpu.json").write_text('{"row": "alexnet"}')
    with pytest.raises(RunError, match=r"alexnet-cpu\.json is damaged \(lacks title"):
        merge_entries(output)


def test_figure_9_is_that_of_the_paper():
    assert list(FIGURE9["cpu"].values()) == [1.50, 1.63, 2.19]
    assert list(FIGURE9["cuda"].values()) == [2.85, 1.64, 1.88]
