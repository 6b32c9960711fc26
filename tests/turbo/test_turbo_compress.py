"""`compress` from data to a small network: its figures counted again by hand, its budgets, and what can go wrong."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from turbo_examples import (
    QUICK,
    Recording,
    coloured_images,
    digits,
    residual,
    small_mlp,
    with_dropout,
)

from bayesprune import models
from bayesprune.data import DataSet, Split
from bayesprune.likelihoods import GaussianRegression, LearnedNoise
from bayesprune.surgery import ProofError
from bayesprune.turbo import PRESETS, CollapsedError, DivergedError, Settings, SettingsError, compress, compression

KEYS = {
    *("accuracy", "accuracy_unpruned", "accuracy_drop", "nonzero_fraction", "dense_fraction", "structure", "macs"),
    *("macs_dense", "macs_removed", "parameters", "parameters_dense", "seed", "seconds", "converged", "status"),
    *("versions", "hardware"),
}
TINY = replace(QUICK, warmup_epochs=1, prune_epochs=2, finetune_epochs=1)


def layers_of(network):
    return {name: m for name, m in network.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}


def accuracy(network, split):
    network.eval()
    with torch.no_grad():
        return (network(split.x).argmax(1) == split.y).double().mean().item()


@pytest.fixture(scope="module")
def quick():
    """A compression of an mlp on digits, and what it recorded."""
    data, network, recorder = digits(), small_mlp(), Recording()
    return data, network, recorder, compress(network, data, settings=QUICK, recorder=recorder)


def test_the_network_is_smaller_and_as_good(quick):
    data, network, _, result = quick
    assert result.network is network
    assert result.summary["nonzero_fraction"] < 0.5
    assert result.summary["accuracy"] > result.summary["accuracy_unpruned"] - 0.03
    assert accuracy(network, data.test) > 0.9


def test_the_repr_is_a_line_of_figures(quick):
    data, network, recorder, result = quick
    live = sum(int((layer.weight != 0).sum()) for layer in layers_of(network).values())
    weights = sum(layer.weight.numel() for layer in layers_of(network).values())
    text = repr(result)
    assert text.startswith(f"Compression({type(network).__name__}, layers=3, epochs={len(recorder.rows)}, accuracy=")
    for part in (
        f"accuracy={accuracy(network, data.test):.4g}, accuracy_unpruned=",
        f"nonzero_fraction={live / weights:.4g}, macs_removed=",
        f"structure={'-'.join(map(str, result.summary['structure']))}, device=cpu, status='finished')",
    ):
        assert part in text
    assert len(text) < 300
    assert "tensor" not in text


def test_the_repr_needs_no_summary():
    empty = compression.Compression(nn.Identity(), nn.Identity(), {}, {}, {}, [])
    assert repr(empty) == "Compression(Identity, layers=0, epochs=0, device=cpu, status='not summed up')"


def test_the_figures_are_those_of_the_network(quick):
    data, network, _, result = quick
    summary, layers = result.summary, layers_of(network)
    assert set(summary) >= KEYS
    assert summary["accuracy"] == pytest.approx(accuracy(network, data.test))
    assert summary["validation"]["accuracy"] == pytest.approx(accuracy(network, data.validation))
    assert summary["accuracy_drop"] == pytest.approx(summary["accuracy_unpruned"] - summary["accuracy"])
    nonzeros = {name: layer.weight != 0 for name, layer in layers.items()}
    weights = sum(n.numel() for n in nonzeros.values())
    live = sum(int(n.sum()) for n in nonzeros.values())
    biases = sum(layer.bias.numel() for layer in layers.values())
    assert summary["nonzero_fraction"] == live / weights
    assert (summary["parameters_dense"], summary["parameters"]) == (weights + biases, live + biases)
    # A hidden unit lives where weights lead to it and away from it; inputs live where they are read.
    made = [nonzeros["fc1"].any(1) & nonzeros["fc2"].any(0), nonzeros["fc2"].any(1) & nonzeros["out"].any(0)]
    first, second = (int(m.sum()) for m in made)
    assert summary["structure"] == [first, second]
    macs = 64 * first + first * second + second * 10
    assert (summary["macs"], summary["macs_dense"]) == (macs, 64 * 32 + 32 * 16 + 16 * 10)
    assert summary["dense_fraction"] == macs / weights
    assert summary["macs_removed"] == pytest.approx(1 - macs / weights)
    assert summary["seed"] == 0
    assert summary["seconds"] > 0
    assert summary["status"] == "finished"
    assert isinstance(summary["converged"], bool)
    assert summary["versions"]
    assert summary["hardware"]


def test_the_posterior_has_the_shapes_of_the_weights(quick):
    _, network, _, result = quick
    layers = layers_of(network)
    assert list(result.masks) == list(result.active) == list(result.expected_precision) == list(layers)
    for name, layer in layers.items():
        for tensor in (result.masks[name], result.active[name], result.expected_precision[name]):
            assert tensor.shape == layer.weight.shape
        assert result.masks[name].dtype == torch.bool
        assert torch.equal(layer.weight != 0, result.masks[name])
        assert ((result.active[name] >= 0) & (result.active[name] <= 1)).all()
        assert (result.expected_precision[name] > 0).all()


def test_the_history_has_a_row_per_epoch(quick):
    data, _, recorder, result = quick
    rows = result.history
    assert rows == recorder.rows
    phases = ["warmup"] * 5 + ["prune"] * 10 + ["finetune"] * 2
    assert [row["phase"] for row in rows] == phases
    assert [row["epoch"] for row in rows] == [*range(1, 6), *range(1, 11), *range(1, 3)]
    assert all(math.isfinite(row["loss"]) for row in rows)
    assert all(0 <= row["validation_accuracy"] <= 1 for row in rows)
    for row in rows[5:15]:
        assert {"message_change", "messages_converged", "weight_strength", "unit_strength"} <= set(row)
    fractions = [row["nonzero_fraction"] for row in rows[5:]]
    assert fractions[-1] == fractions[-2] == fractions[-3] == result.summary["nonzero_fraction"]
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    batches = len(data.train) // 64
    assert recorder.steps == [(i, batches) for _ in phases for i in range(1, batches + 1)]


def test_a_trained_network_is_taken_as_it_is():
    data, network = digits(), small_mlp()
    compress(network, data, settings=replace(TINY, warmup_epochs=5, unit_strength=0.0, weight_strength=0.0))
    before = accuracy(network, data.test)
    result = compress(network, data, settings=replace(TINY, warmup_epochs=0))
    assert result.summary["accuracy_unpruned"] == pytest.approx(before)
    assert [row["phase"] for row in result.history] == ["prune"] * 2 + ["finetune"]


@pytest.mark.parametrize("noise", [0.05, LearnedNoise(0.5)], ids=["known", "learned"])
def test_regression_drops_the_inputs_that_do_not_matter(noise):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1200, 10, generator=generator)
    y = 1.5 * torch.sin(x[:, :1]) + x[:, 1:2] + 0.1 * torch.randn(1200, 1, generator=generator)
    data = DataSet.from_tensors(x, y, test=0.2, validation=0.2)
    network = models.create("mlp", (10,), 1, generator=generator, widths=(16,))
    likelihood = GaussianRegression(noise)
    settings = Settings(
        warmup_epochs=15,
        prune_epochs=30,
        finetune_epochs=10,
        batch_size=32,
        learning_rate=1e-2,
        weight_strength=30.0,
        weight_ramp=(0.2, 0.6),
        unit_strength=100.0,
        refresh_every=7,
    )
    result = compress(network, data, settings=settings, likelihood=likelihood)
    read = result.masks["fc1"].any(0)
    assert read[:2].all()
    assert not read[2:].any()
    assert result.summary["r2"] > 0.95
    assert result.summary["rmse_unpruned"] > 0
    with torch.no_grad():
        error = (network(data.test.x) - data.test.y).square().mean().sqrt()
    assert result.summary["rmse"] == pytest.approx(float(error), rel=1e-5)
    if isinstance(noise, LearnedNoise):
        assert float(likelihood.log_variance.detach()) < math.log(0.2)


def test_regression_without_settings_keeps_its_accuracy():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=generator)
    data = DataSet.from_tensors(x, x[:, :1] - x[:, 1:2], test=0.2, validation=0.2)
    network = models.create("mlp", (6,), 1, generator=generator, widths=(16,))
    settings = Settings(max_accuracy_drop=0.5, batch_size=32, warmup_epochs=15, prune_epochs=25, finetune_epochs=10)
    result = compress(network, data, settings=settings, likelihood=GaussianRegression(0.1))
    lost = result.summary["validation_unpruned"]["r2"] - result.summary["validation"]["r2"]
    assert lost <= 0.005 or "points of validation r2 lost instead of 0.5" in result.summary["status"]
    assert result.summary["r2"] > 0.9


@pytest.mark.parametrize("name", ["residual", "resnet20", "lenet5"])
def test_networks_with_sums_norms_and_convolutions(name):
    data = coloured_images()
    shape = (3, 8, 8)
    generator = torch.Generator().manual_seed(0)
    network = residual() if name == "residual" else models.create(name, shape, 4, generator=generator)
    settings = replace(TINY, batch_size=48)
    result = compress(network, data, settings=settings)
    layers = layers_of(network)
    assert list(result.masks) == list(layers)
    for name, layer in layers.items():
        assert result.masks[name].shape == result.active[name].shape == layer.weight.shape
        assert not layer.weight[~result.masks[name]].any()
    assert result.summary["macs"] <= result.summary["macs_dense"]
    assert network(data.test.x).shape == (len(data.test), 4)


def test_the_preset_of_the_paper_runs():
    settings = Settings.from_dict({**PRESETS["paper"], "prune_epochs": 3, "finetune_epochs": 2, "batch_size": 64})
    result = compress(small_mlp(), digits(), settings=settings)
    assert [row["phase"] for row in result.history] == ["prune"] * 3 + ["finetune"] * 2
    assert 0 < result.summary["nonzero_fraction"] <= 1
    assert result.summary["accuracy"] > 0.5


@pytest.mark.parametrize("budget", [{"target_macs": 0.5}, {"target_nonzero": 0.7}, {"max_accuracy_drop": 1.0}])
def test_a_budget_is_met_or_the_status_says_how_close_it_came(budget):
    epochs = {"warmup_epochs": 10, "prune_epochs": 40, "finetune_epochs": 5}
    settings = Settings(**budget, **epochs, refresh_every=10, learning_rate=1e-2)
    data = digits()
    result = compress(small_mlp(), data, settings=settings)
    summary = result.summary
    (name, value) = next(iter(budget.items()))
    lost = 100 * (summary["validation_unpruned"]["accuracy"] - summary["validation"]["accuracy"])
    met = {
        "target_macs": 1 - summary["macs_removed"] <= value,
        "target_nonzero": summary["nonzero_fraction"] <= value,
        "max_accuracy_drop": lost <= value + 100 / len(data.validation),  # whole examples
    }[name]
    assert met == (summary["status"] == "finished")
    assert met or f"instead of {value:g}" in summary["status"]
    assert summary["nonzero_fraction"] < 0.9


def test_a_budget_out_of_reach_is_reported():
    result = compress(small_mlp(), digits(), settings=replace(TINY, target_macs=0.001, target_nonzero=0.001))
    fraction = 1 - result.summary["macs_removed"]
    assert f"MACs {fraction:.3f} of the dense network's instead of 0.001" in result.summary["status"]
    assert f"nonzero {result.summary['nonzero_fraction']:.4f} instead of 0.001" in result.summary["status"]


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_prior_that_kills_everything_never_goes_unnoticed(optimiser):
    settings = replace(QUICK, weight_strength=1e6, weight_ramp=(0.0, 0.0), optimiser=optimiser, learning_rate=0.01)
    recorder, message, result = Recording(), "", None
    try:
        result = compress(small_mlp(), digits(), settings=settings, recorder=recorder)
    except CollapsedError as error:
        message = str(error)
    if optimiser == "sgd":  # Adam's steps are of limited length
        assert any("no live weight left in fc1, fc2, out; strengths halved" in note for note in recorder.notes)
    if result is None:
        assert "try a smaller weight_strength than 1e+06" in message
    else:
        assert all(mask.any() for mask in result.masks.values())
        assert result.summary["notes"] == recorder.notes
        assert result.summary["validation"]["accuracy"] > 0.15 or result.summary["status"].startswith("collapsed")


def test_a_collapse_halves_the_strength_also_without_a_budget():
    settings = replace(QUICK, weight_strength=1e6, weight_ramp=(0.0, 0.0), optimiser="sgd", learning_rate=0.01)
    result = compress(small_mlp(), digits(), settings=settings)
    notes = [note for note in result.summary["notes"] if "strengths halved" in note]
    assert notes
    strengths = [row["weight_strength"] for row in result.history if row["phase"] == "prune"]
    halvings = [1e6 / 2**k for k in range(len(notes) + 1)]
    assert set(strengths) <= set(halvings)
    assert strengths == sorted(strengths, reverse=True)
    assert all(mask.any() for mask in result.masks.values())


def test_a_network_that_only_guesses_is_called_collapsed():
    data, network = digits(), small_mlp()
    with torch.no_grad():
        network.out.weight.mul_(1e-3)
        network.out.bias[0] = 10.0
    network.out.requires_grad_(False)
    settings = replace(TINY, warmup_epochs=0, learning_rate=1e-9)
    result = compress(network, data, settings=settings)
    share = (data.validation.y == 0).double().mean().item()
    assert accuracy(network, data.validation) == share
    assert result.summary["status"].startswith(f"collapsed: validation accuracy {share:.3f} is that of guessing")


def poisoned(data, value):
    x = data.train.x.clone()
    x[0] = value
    return replace(data, train=Split(x, data.train.y))


@pytest.mark.parametrize("phase", [0, 1])
def test_a_nan_stops_the_run_and_keeps_the_last_checkpoint(phase):
    """One example turns bad after the first epoch of the phase, or so it seems."""
    recorder = Recording()
    data = digits()
    broken = poisoned(data, float("nan"))
    start = (0, TINY.warmup_epochs + 1)[phase]

    class Turning(Recording):
        def row(self, row):
            super().row(row)
            if len(self.rows) == max(1, start):
                data.train.x.copy_(broken.train.x)

    recorder = Turning()
    settings = replace(TINY, warmup_epochs=2) if phase == 0 else TINY
    with pytest.raises(DivergedError, match=r"the loss became nan in \w+ epoch 2; try a learning rate below 0\.006"):
        compress(small_mlp(), data, settings=settings, recorder=recorder)
    assert recorder.saved["rows"] == len(recorder.rows) == max(1, start)
    assert all(torch.isfinite(w).all() for w in recorder.saved["model"].values())


def test_weights_that_burst_in_the_last_step_are_noticed_before_the_checkpoint():
    recorder = Recording()
    network = small_mlp()

    class Bursting(Recording):
        def step(self, done, total):
            super().step(done, total)
            if len(self.rows) == 1 and done == total:
                with torch.no_grad():
                    network.fc1.weight[0, 0] = float("inf")

    recorder = Bursting()
    with pytest.raises(DivergedError, match="a weight became infinite or NaN in prune epoch 1"):
        compress(network, digits(), settings=TINY, recorder=recorder)
    assert recorder.saved["rows"] == 1
    assert all(torch.isfinite(w).all() for w in recorder.saved["model"].values())


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_an_absurd_learning_rate_is_an_error(optimiser):
    settings = replace(TINY, learning_rate=1e30, optimiser=optimiser)
    with pytest.raises(DivergedError, match="try a learning rate below"):
        compress(small_mlp(), digits(), settings=settings)


def test_data_without_validation_are_refused():
    data = replace(digits(), validation=None)
    with pytest.raises(SettingsError, match=r"needs a validation split .* validation=0\.1"):
        compress(small_mlp(), data, settings=TINY)


def test_batches_larger_than_the_data():
    data = coloured_images(60)
    result = compress(residual(), data, settings=replace(TINY, batch_size=4096))
    assert len(result.history) == 4


def test_the_same_seed_gives_the_same_network_and_another_one_does_not():
    networks = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        network = with_dropout()
        compress(network, digits(), settings=replace(TINY, seed=seed))
        networks.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    assert torch.equal(networks[0], networks[1])
    assert not torch.equal(networks[0], networks[2])


def compared(result, inputs):
    """The largest difference between the outputs of the masked and of the smaller network."""
    result.network.eval()
    with torch.no_grad():
        return float((result.network(inputs) - result.shrunk(inputs)).abs().max())


def test_the_shrunk_network_is_smaller_and_computes_the_same(quick):
    data, network, _, result = quick
    summary, layers = result.summary, layers_of(result.shrunk)
    assert compared(result, data.test.x) < 1e-5
    assert accuracy(result.shrunk, data.test) == pytest.approx(summary["accuracy"], abs=1 / len(data.test))
    assert not result.shrunk.training
    real = [layers["fc1"].out_features, layers["fc2"].out_features]
    assert real == summary.get("structure_shrunk", summary["structure"])
    assert all(width < before for width, before in zip(real, (32, 16), strict=True))
    assert summary["macs_shrunk"] == 64 * real[0] + real[0] * real[1] + real[1] * 10
    assert summary["parameters_shrunk"] == sum(p.numel() for p in result.shrunk.parameters())
    assert summary["parameters_shrunk"] == summary["macs_shrunk"] + sum(real) + 10
    assert [layer.out_features for layer in layers_of(network).values()] == [32, 16, 10]  # the given one stays
    proof = summary["proof"]
    assert proof["examples"] == 2 * min(256, len(data.validation))
    assert 0 <= proof["max_rel_64"] <= 1e-10
    assert 0 <= proof["max_rel_32"] <= 1e-5
    assert "surgery_notes" not in summary


def test_the_proof_holds_with_norms_and_sums():
    data = coloured_images()
    result = compress(residual(), data, settings=replace(TINY, batch_size=48, unit_strength=1e4))
    assert compared(result, data.test.x) < 1e-4
    assert result.summary["parameters_shrunk"] <= result.summary["parameters_dense"]


def test_networks_that_differ_are_an_error(monkeypatch):
    def wrong(model, masks, example):
        surgery = operate(model, masks, example)
        with torch.no_grad():
            surgery.network.out.bias[0] += 1e-3
        return surgery

    operate = compression.operate
    monkeypatch.setattr(compression, "operate", wrong)
    with pytest.raises(ProofError, match="differ by"):
        compress(small_mlp(), digits(), settings=TINY)


class NamesItsDtype(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.out = nn.Linear(64, 12), nn.Linear(12, 10)

    def forward(self, x):
        return self.out(self.fc1(x.flatten(1).float()).relu())


def test_a_network_that_names_its_dtype_is_compared_in_it():
    torch.manual_seed(0)
    data = digits()
    result = compress(NamesItsDtype(), data, settings=TINY)
    assert compared(result, data.test.x) < 1e-5
    assert result.summary["proof"]["max_rel_32"] <= 1e-5
    assert "max_rel_64" not in result.summary["proof"]
