"""`bayesprune reproduce convergence`: when messages settle, where starts end, stopped and continued, on digits."""

import dataclasses
import json
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from bayesprune import data, models
from bayesprune.reproduce import ROWS, write_results_page
from bayesprune.reproduce.convergence import SETTINGS, ConvergenceFiles, StartRunner, convergence_jobs
from bayesprune.reproduce.convergence.figure import draw_convergence
from bayesprune.reproduce.convergence.markdown import convergence_markdown
from bayesprune.reproduce.convergence.running import noisy, run_start, shown_layer
from bayesprune.reproduce.convergence.settling import agreement, pairs, settled, with_settling
from bayesprune.turbo import Compressor, Interrupted, SettingsError
from bayesprune.turbo.loop import Silent

DIGITS = ROWS["digits"]
CONFIG = """
model: lenet5
data: digits
batch_size: 64
warmup_epochs: 1
prune_epochs: 8
finetune_epochs: 1
learning_rate: 0.006
unit_strength: 200
weight_strength: 0.25
weight_start: 0.01
refresh_every: 2
"""
SHORT = {"iterations": 3, "steps": 4}
NAME = "digits-trial-3x4"
QUICK = ("--row", "digits", "--iterations", "3", "--steps", "4", "--device", "cpu", "--output", "out", "--quiet")
FEW = (*QUICK, "--settings", "paper-chain,ours-ising", "--starts", "2")


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("configs")
    (folder / "digits-ours-best.yaml").write_text(CONFIG)
    return folder


@pytest.fixture
def convergence(reproduce, configs):
    return lambda *arguments: reproduce("convergence", "--configs", configs, *arguments)


@pytest.fixture(scope="module")
def digits():
    return data.load("digits", validation=0.1, seed=0)


def first_job(configs, name, start=0, **other):
    job = convergence_jobs(DIGITS, [name], [start], configs, **SHORT)[0]
    return dataclasses.replace(job, settings=dataclasses.replace(job.settings, **other))


def untrained(loaded):
    generator = torch.Generator().manual_seed(5)
    return models.create("lenet5", loaded.input_shape, 10, generator=generator)


def without_times(row):
    return {key: value for key, value in row.items() if key != "seconds"}


# ---------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("values", "tolerance", "iteration"),
    [
        ([0.5, 0.05, 0.005, 0.0005], 1e-2, 3),
        ([0.5, 0.05, 0.005, 0.0005], 1e-3, 4),
        ([0.5, 0.05, 0.005, 0.0005], 1e-4, None),
        ([0.5, 0.001, 0.5, 0.001, 0.002], 1e-2, 4),  # below, and above once more
        ([0.001, 0.002], 1e-2, 1),
        ([0.5, 0.001, 0.01], 1e-2, None),  # not below
        ([0.001, math.nan], 1e-2, None),
        ([0.5, 0.0, 0.0], 1e-3, 2),
    ],
)
def test_settled_means_below_and_staying_there(values, tolerance, iteration):
    assert settled(values, tolerance) == iteration


def an_end(**layers):
    return {layer: bytes(values).hex() for layer, values in layers.items()}


def test_agreement_by_hand():
    one = {"end": an_end(a=[0, 255, 128, 127], b=[255, 255]), "sites": {"a": 4, "b": 36}}
    other = {"end": an_end(a=[51, 255, 127, 127], b=[0, 255]), "sites": {"a": 4, "b": 36}}
    found = agreement(one, other)
    assert found["a"] == pytest.approx(
        {"difference": 52 / 4 / 255, "equal": 3 / 4, "live_in_common": 1 / 2, "live": 2 / 4}
    )
    assert found["b"] == pytest.approx({"difference": 0.5, "equal": 0.5, "live_in_common": 0.5, "live": 1.0})
    whole = {"difference": (52 / 255 + 18) / 40, "equal": (3 + 18) / 40, "live": (2 + 36) / 40}
    assert found["all"] == pytest.approx(whole | {"live_in_common": (1 + 18) / (2 + 36)})


def test_supports_that_all_died_agree():
    dead = {"end": an_end(a=[0, 3]), "sites": {"a": 2}}
    assert agreement(dead, dead)["all"] == {"difference": 0, "equal": 1, "live": 0, "live_in_common": 1}


def a_row(setting, start, **other):
    """A row of two iterations that nobody has measured."""
    changes = {"message_change": 0.1, "evidence_change": 0.2, "messages_converged": True}
    by_layer = {"message_change_by_layer": {"fc": 0.1}, "evidence_change_by_layer": {"fc": 0.2}}
    iterations = [{"iteration": number, **changes, **by_layer} for number in (1, 2)]
    return {
        "setting": setting,
        "title": SETTINGS[setting][0],
        "start": start,
        "noise": False,
        "seed": 0,
        "iterations": 2,
        "steps": None,
        "status": "finished",
        "warm": "same",
        "accuracy": 0.9,
        "nonzero_fraction": 0.1,
        "steps_of_iteration": 7,
        "sites": {"fc": 2},
        "outer_iterations": iterations,
        "end": an_end(fc=[0, 255]),
        "windows": None,
        "seconds": 1.0,
        **other,
    }


def test_only_starts_of_one_setting_and_one_warm_network_are_compared():
    rows = [a_row("ours", 0), a_row("ours", 1), a_row("ours", 2, warm="other"), a_row("paper", 0)]
    rows.append(a_row("ours", 0, noise=True, end=an_end(fc=[0, 0])))
    rows.append(a_row("ours", 3, outer_iterations=None, end=None, status="failed: the loss became nan"))
    found = with_settling(rows)
    assert [list(row.get("agreement", {})) for row in found] == [["1"], ["0"], [], [], [], []]
    assert [row.get("control", {}).get("all", {}).get("equal") for row in found] == [0.5, None, None, None, None, None]
    assert all("end" not in row for row in found)
    assert len(pairs(found[:3])) == 1
    text = convergence_markdown(DIGITS, found)
    assert "| 100.00 (50.00) |" in text
    assert "`ours` from start 3: failed: the loss became nan" in text
    assert "Rows began with different warm networks" in text
    assert "A trial with 2 iterations: these are not results." in text


def test_rows_that_all_failed_make_a_page_and_no_picture(tmp_path):
    rows = with_settling([a_row("ours", 0, outer_iterations=None, end=None, status="failed: nan")])
    assert "failed: nan" in convergence_markdown(DIGITS, rows)
    draw_convergence(DIGITS, rows, tmp_path / "none.png")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- jobs


def test_jobs_differ_in_their_first_messages_only(configs):
    work = convergence_jobs(DIGITS, None, [0, 1], configs)
    assert [job.name for job in work] == [f"{name}-{start}" for start in (0, 1, "noise") for name in SETTINGS]
    assert [job.start for job in work if job.noise] == [0] * len(SETTINGS)
    for job in work:
        assert job.settings.random_start
        assert (job.settings.seed, job.seed) == (job.start, 0)
        assert (job.settings.warmup_epochs, job.settings.prune_epochs, job.settings.finetune_epochs) == (0, 30, 0)
    by_name = {job.setting: job.settings for job in work[: len(SETTINGS)]}
    assert (by_name["paper"].p01, by_name["paper"].p10, by_name["paper"].family) == (0.3, 0.7, "mean_field")
    assert by_name["ours"].coupling == 0
    assert by_name["ours"].p01 is None
    assert by_name["ours-ising"].coupling > 0
    held = by_name["ours-ising-held"]
    assert Compressor(untrained_small(), torch.zeros(2, 4), examples=10, epochs=9, settings=held).strengths == (
        0.25,
        200,
    )


def untrained_small():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 1}, "iterations must be at least 2, got 1"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"names": ["ising"]}, "unknown setting 'ising'; choose from paper"),
    ],
)
def test_jobs_that_cannot_be(configs, options, message):
    with pytest.raises(SettingsError, match=message):
        convergence_jobs(DIGITS, options.pop("names", None), [0], configs, **options)


def test_other_lengths_are_kept_apart():
    names = [ConvergenceFiles(Path("out"), "digits", *length).name for length in ((30, None), (5, None), (30, 7))]
    assert names == ["digits", "digits-trial-5", "digits-trial-30x7"]


def test_the_third_dense_layer_is_shown():
    for name, shape, layer in (
        ("alexnet-small", (3, 32, 32), "out"),
        ("mlp", (1, 8, 8), "out"),
        ("vgg11", (3, 32, 32), "out"),
    ):
        assert shown_layer(models.create(name, shape, 10)) == layer


# ---------------------------------------------------------------------- a start


@pytest.mark.parametrize("name", ["ours-ising", "paper-chain"])
def test_a_start_is_a_plain_training_loop_with_messages(configs, digits, name):
    """The same by hand, with the optimisers of torch."""
    job = first_job(configs, name, start=1)
    warm = untrained(digits)
    row = run_start(job, warm.state_dict(), digits, Silent())

    s, network = job.settings, untrained(digits)
    compressor = Compressor(network, digits.train.x[:2], examples=len(digits.train), epochs=3, settings=s)
    kind = {"adam": lambda p: torch.optim.Adam(p, s.learning_rate)}.get(
        s.optimiser, lambda p: torch.optim.SGD(p, s.learning_rate, s.momentum, nesterov=True)
    )
    optimiser = kind(network.parameters())
    order = torch.randperm(len(digits.train), generator=torch.Generator().manual_seed(0))
    before = {layer: 0.5 for layer in row["sites"]}
    done = 0
    for iteration in row["outer_iterations"]:
        for _ in range(4):
            index = order[64 * done : 64 * (done + 1)]
            loss = nn.functional.cross_entropy(network(digits.train.x[index]), digits.train.y[index])
            optimiser.zero_grad()
            loss.backward()
            if s.optimiser == "adam":
                compressor.prior.add_gradients()
            optimiser.step()
            if s.optimiser == "sgd":
                compressor.prior.decay(s.learning_rate)
            compressor.count_step()  # E[rho] follows the weights after the step
            done += 1
        received = [torch.sigmoid(p.double()) for p in compressor.prior.prior_logits]
        update = compressor.update()
        now = [torch.sigmoid(p.double()) for p in compressor.prior.prior_logits]
        for weight, a, b in zip(compressor.prior.weights, received, now, strict=True):
            changed = float((a - b).abs().mean())
            assert iteration["message_change_by_layer"][weight.name] == pytest.approx(changed, rel=1e-3, abs=1e-6)
        sent = {
            w.name: torch.sigmoid(e.double())
            for w, e in zip(compressor.prior.weights, compressor.prior.evidence_logits, strict=True)
        }
        total = sum(float((sent[layer] - before[layer]).abs().sum()) for layer in sent) / sum(row["sites"].values())
        assert iteration["evidence_change"] == pytest.approx(total, rel=1e-3, abs=1e-6)
        assert iteration["nonzero_fraction"] == pytest.approx(update.size.nonzero_fraction, abs=1e-4)
        before = sent
    posterior = torch.sigmoid(sum_of(compressor, "out")).flatten()
    end = torch.tensor(list(bytes.fromhex(row["end"]["out"])))
    if s.family == "collapsed":  # Module A's evidence does not depend on what it is told
        assert float((end - 255 * posterior).abs().max()) < 1


def sum_of(compressor, layer):
    """Logits of both messages of a layer together."""
    names = [weight.name for weight in compressor.prior.weights]
    i = names.index(layer)
    return compressor.prior.prior_logits[i] + compressor.prior.evidence_logits[i]


def test_what_a_row_keeps(configs, digits, monkeypatch):
    monkeypatch.setattr("bayesprune.reproduce.convergence.running.SITES", 1000)
    weights = untrained(digits).state_dict()
    row = run_start(first_job(configs, "ours-ising"), weights, digits, Silent())
    json.dumps(row)
    layers = ("conv1", "conv2", "fc1", "fc2", "out")
    assert row["sites"] == {layer: weights[f"{layer}.weight"].numel() for layer in layers}
    assert {layer: len(end) // 2 for layer, end in row["end"].items()} == {
        layer: min(1000, count) for layer, count in row["sites"].items()
    }
    assert list(row["windows"]["iterations"]) == ["1", "2", "3"]
    assert (row["windows"]["layer"], row["windows"]["shape"]) == ("out", [10, 84])
    for window in row["windows"]["iterations"].values():
        for lines in window.values():
            assert [len(bytes.fromhex(line)) for line in lines] == [84] * 10
    last = [b for line in row["windows"]["iterations"]["3"]["posterior"] for b in bytes.fromhex(line)]
    # The lattice of a Linear layer is (in, out), the window (out, in).
    assert torch.equal(
        torch.tensor(last).reshape(10, 84).t().flatten(), torch.tensor(list(bytes.fromhex(row["end"]["out"])))
    )
    later = run_start(first_job(configs, "ours-ising", start=1), weights, digits, Silent())
    assert later["windows"] is None
    assert later["warm"] == row["warm"]
    assert later["outer_iterations"][0]["message_change"] != row["outer_iterations"][0]["message_change"]


def test_a_loss_that_is_not_finite_is_a_failed_row(configs, digits):
    job = first_job(configs, "ours", learning_rate=1e30, optimiser="sgd")
    row = run_start(job, untrained(digits).state_dict(), digits, Silent())
    assert row["status"].startswith("failed: the loss became nan")
    assert row["outer_iterations"] is None
    files = ConvergenceFiles(Path("out"), "digits", 3, 4)
    files.write(job, row)
    assert files.read(files.path(job)) == row


# ---------------------------------------------------------------------- the command


def test_from_data_to_a_report_and_stopped_and_continued(convergence, monkeypatch):
    calls, run = [], StartRunner.__call__

    def stop_at_the_third(self, job, *arguments, **options):
        calls.append(job.name)
        if len(calls) == 3:
            raise Interrupted
        return run(self, job, *arguments, **options)

    monkeypatch.setattr(StartRunner, "__call__", stop_at_the_third)
    code, out, _ = convergence(*FEW)
    assert code == 130
    folder = Path("out/rows", NAME)
    assert calls == ["paper-chain-0", "ours-ising-0", "paper-chain-1"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "ours-ising-0.json",
        "paper-chain-0.json",
        "warm.safetensors",
    ]
    warm = (folder / "warm.safetensors").read_bytes()

    code, out, err = convergence(*FEW)
    assert (code, err) == (0, "")
    assert calls[3:] == ["paper-chain-1", "ours-ising-1", "paper-chain-noise", "ours-ising-noise"]
    assert (folder / "warm.safetensors").read_bytes() == warm
    everything = json.loads(Path(f"out/{NAME}.json").read_text())
    rows = {f"{row['setting']}-{row['start']}": row for row in everything if not row["noise"]}
    assert len(everything) == 6
    assert set(rows) == {"paper-chain-0", "paper-chain-1", "ours-ising-0", "ours-ising-1"}
    assert len({row["warm"] for row in rows.values()}) == 1
    for row in rows.values():
        assert row["status"] == "finished"
        assert len(row["outer_iterations"]) == 3
        assert row["versions"]["torch"]
        assert row["settled"]["message"]["all"].keys() == {"0.01", "0.001"}
        other = str(1 - row["start"])
        assert list(row["agreement"]) == [other]
        assert row["agreement"][other] == rows[f"{row['setting']}-{other}"]["agreement"][str(row["start"])]
    text = Path(f"out/{NAME}.md").read_text()
    assert "A trial with 3 iterations of 4 steps" in text
    assert "live in common" in text
    for picture in (f"out/{NAME}.png", f"out/{NAME}-messages.png"):
        assert Path(picture).read_bytes().startswith(b"\x89PNG")

    # A row that is lost is computed again, alone and to the same figures; what was there is not touched.
    kept = json.loads((folder / "ours-ising-1.json").read_text())
    (folder / "ours-ising-1.json").unlink()
    assert convergence(*FEW)[0] == 0
    assert calls[7:] == ["ours-ising-1"]
    assert without_times(json.loads((folder / "ours-ising-1.json").read_text())) == without_times(kept)

    code, out, _ = convergence(*FEW, "--list")
    assert "0 of 6 networks to train, 0 epochs" in out

    # Without matplotlib there is no picture, and it comes later from the JSON.
    Path(f"out/{NAME}.png").unlink()
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "matplotlib.figure", None)
        missing.setattr("bayesprune.cli.reproduce.find_spec", lambda name: None)
        code, out, _ = convergence(*FEW)
    assert code == 0
    assert "matplotlib is missing" in out
    assert not Path(f"out/{NAME}.png").exists()
    (folder / "warm.safetensors").unlink()
    assert convergence(*FEW)[0] == 0
    assert Path(f"out/{NAME}.png").exists()
    assert calls[8:] == []

    # The page of all results shows it under the name of its row.
    Path("results/convergence").mkdir(parents=True)
    for ending in ("json", "png"):
        Path(f"results/convergence/digits.{ending}").write_bytes(Path(f"out/{NAME}.{ending}").read_bytes())
    write_results_page(Path("results"), Path("docs"))
    page = Path("docs/results.md").read_text()
    assert "## How the messages settle: LeNet-5 on the embedded digits" in page
    assert "![How the messages settle" in page
    assert Path("docs/figures/convergence-digits.png").exists()


def test_another_warm_up_is_trained_anew(configs, digits, tmp_path):
    path = tmp_path / "warm.safetensors"
    job = first_job(configs, "ours")
    first = StartRunner(path)(job, digits)
    content = path.read_bytes()
    assert StartRunner(path)(job, digits)["warm"] == first["warm"]
    assert path.read_bytes() == content
    other = dataclasses.replace(job, warm_up=dataclasses.replace(job.warm_up, learning_rate=0.01))
    assert StartRunner(path)(other, digits)["warm"] != first["warm"]
    assert path.read_bytes() != content


def test_an_unknown_row_is_refused(convergence):
    code, _, err = convergence("--row", "resnet")
    assert code == 2
    assert "'resnet' is not one of lenet5, alexnet, vgg11, digits" in err


def test_the_control_has_the_pi_of_the_first_start_and_other_weights(configs, digits):
    weights = untrained(digits).state_dict()
    changed = noisy(weights)
    for name, value in weights.items():
        if name.endswith("bias"):  # they are zero
            continue
        relative = changed[name] / value - 1
        assert 0 < float(relative.abs().max()) < 6e-4
        assert value.numel() < 1000 or float(relative.std()) == pytest.approx(1e-4, rel=0.1)
    work = {job.name: job for job in convergence_jobs(DIGITS, ["ours"], [0, 1], configs, **SHORT)}
    first, control, other = (
        run_start(work[name], weights, digits, Silent())["outer_iterations"][0]
        for name in ("ours-0", "ours-noise", "ours-1")
    )
    # Without coupling the first v_{h->s} is 1/2 everywhere, so its change tells what pi_n was.
    assert control["message_change"] == first["message_change"] != other["message_change"]
    assert control["loss"] != first["loss"]
