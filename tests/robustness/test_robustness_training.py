"""Measuring a network, and adversarial fine-tuning: sparsity stays, robustness grows, test data are never seen."""

import copy
import dataclasses

import pytest
import torch
from robustness_examples import small_network
from torch import nn

from bayesprune import load
from bayesprune.data import DataSet, Split
from bayesprune.likelihoods import Classification
from bayesprune.robustness import (
    Bounds,
    HardenSettings,
    MeasureSettings,
    Plan,
    RecordFiles,
    Subject,
    fgsm,
    harden,
    hardening,
    live_weights,
    measure,
    pgd,
    study,
    with_noise,
)
from bayesprune.turbo import DivergedError, Interrupted, SettingsError

MEASURED = MeasureSettings(epsilons=(0.0, 0.05, 0.2), pgd_epsilons=(0.05,), noise=(0.0, 0.3), pgd_steps=4)
SETTINGS = HardenSettings(epochs=6, epsilon=(0.0, 0.2), batch_size=64, seed=1)


class Silent:
    """A watcher that says nothing and stops after some steps."""

    def __init__(self, stop_after=None):
        self.steps, self.rows, self._stop_after = 0, [], stop_after

    def row(self, row):
        self.rows.append(row)

    def step(self, done, total):
        self.steps += 1

    def should_stop(self):
        return self._stop_after is not None and self.steps >= self._stop_after


@pytest.fixture(scope="module")
def trained():
    network, loaded = small_network()
    return network, loaded, Bounds.of(loaded)


@pytest.fixture(scope="module")
def hardened(trained):
    network, loaded, bounds = trained
    return harden(network, loaded.train, bounds, SETTINGS, validation=loaded.validation)


def right(network, x, y):
    with torch.no_grad():
        return float((network(x).argmax(1) == y).double().mean())


def test_figures_are_those_of_the_attacks_one_by_one(trained):
    network, loaded, bounds = trained
    found = measure(network, loaded.test, bounds, MEASURED)
    x, y = loaded.test.x, loaded.test.y
    assert found["examples"] == len(y)
    assert found["clean"]["accuracy"] == pytest.approx(right(network, x, y), abs=1e-6)
    for one in found["fgsm"]:
        moved = torch.cat(
            [
                fgsm(network, Classification(), x[i : i + 100], y[i : i + 100], one["epsilon"], bounds)
                for i in range(0, len(x), 100)
            ]
        )
        assert one["accuracy"] == pytest.approx(right(network, moved, y), abs=1e-6)
    assert found["fgsm"][0]["accuracy"] == found["noise"][0]["accuracy"] == found["clean"]["accuracy"]
    assert found["fgsm"][2]["accuracy"] < found["fgsm"][1]["accuracy"] < found["clean"]["accuracy"]
    generator = torch.Generator().manual_seed(0)
    halves = [(x[:250], y[:250]), (x[250:], y[250:])]
    worse = [pgd(network, Classification(), a, b, 0.05, bounds, steps=4, generator=generator) for a, b in halves]
    assert found["pgd"][0]["accuracy"] == pytest.approx(right(network, torch.cat(worse), y), abs=1e-6)
    nll = nn.functional.cross_entropy(network(x).detach(), y)
    assert found["clean"]["nll"] == pytest.approx(float(nll), abs=1e-5)
    assert sum(one["count"] for one in found["reliability"]) == len(y)


def test_figures_depend_on_the_seed_in_noise_and_pgd_only(trained):
    network, loaded, bounds = trained
    same = [measure(network, loaded.test, bounds, MEASURED) for _ in range(2)]
    for one in same:
        del one["seconds"]
    assert same[0] == same[1]
    other = measure(network, loaded.test, bounds, dataclasses.replace(MEASURED, seed=5, noise=(0.3,)))
    assert other["fgsm"] == same[0]["fgsm"]
    assert other["noise"][0]["nll"] != same[0]["noise"][1]["nll"]


def test_noise_has_its_deviation_in_pixels_and_is_clipped(trained):
    _, loaded, bounds = trained
    grey = (bounds.lower + 0.5 * bounds.pixel).expand(200, 1, 8, 8)
    noisy = with_noise(grey, 0.05, bounds, torch.Generator().manual_seed(0))
    assert float(((noisy - grey) / bounds.pixel).std()) == pytest.approx(0.05, rel=0.02)
    strong = with_noise(loaded.test.x, 1.0, bounds, torch.Generator().manual_seed(0))
    assert torch.equal(bounds.clip(strong), strong)


def test_dead_weights_stay_zero_and_the_given_network_stays_as_it_is(trained, hardened):
    network, loaded, bounds = trained
    before = copy.deepcopy(network.state_dict())
    again = harden(network, loaded.train, bounds, SETTINGS)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert not network.training
    for name, mask in live_weights(network).items():
        assert 0.4 < float(mask.float().mean()) < 0.6
        weight = dict(hardened.network.named_modules())[name].weight
        assert bool((weight[~mask] == 0).all())
        assert float((weight[mask] != network.get_submodule(name).weight[mask]).float().mean()) > 0.9
    for key, value in hardened.network.state_dict().items():  # the validation split and repetition change nothing
        assert torch.equal(value, again.network.state_dict()[key])


def test_it_raises_the_accuracy_under_attack(trained, hardened):
    network, loaded, bounds = trained
    before, after = (measure(one, loaded.test, bounds, MEASURED) for one in (network, hardened.network))
    assert after["fgsm"][2]["accuracy"] > before["fgsm"][2]["accuracy"] + 0.1
    assert after["clean"]["accuracy"] > before["clean"]["accuracy"] - 0.05
    assert len(hardened.history) == SETTINGS.epochs
    assert hardened.history[-1]["validation_accuracy"] > 0.8


@pytest.mark.parametrize(("epsilon", "least"), [((0.0, 0.1), 0.0), ((0.1, 0.1), 0.0999)])
def test_half_of_each_batch_is_clean_and_half_moved_by_its_epsilon(trained, monkeypatch, epsilon, least):
    network, loaded, bounds = trained
    seen = []

    class Spy(hardening.TrainStep):
        def __call__(self, x, y):
            assert self.model.training
            seen.append((x.clone(), y.clone()))
            return super().__call__(x, y)

    monkeypatch.setattr(hardening, "TrainStep", Spy)
    settings = HardenSettings(epochs=1, epsilon=epsilon, batch_size=64)
    harden(network, loaded.train, bounds, settings)
    assert len(seen) == len(loaded.train) // 64
    known = {tuple(image.flatten().tolist()) for image in loaded.train.x}
    strengths = []
    for x, y in seen:
        assert x.shape[0] == y.shape[0] == 64
        assert all(tuple(image.flatten().tolist()) in known for image in x[:32])
        distance = ((x[32:, None] - loaded.train.x[None]) / bounds.pixel).abs().amax((2, 3, 4))
        nearest = distance.min(1).values
        assert float(nearest.max()) <= 0.1 + 1e-5
        strengths.append(nearest)
    strengths = torch.cat(strengths)
    assert float(strengths.min()) >= least
    if least == 0:  # drawn evenly from the whole range, for every image
        assert float(strengths.mean()) == pytest.approx(0.05, abs=0.006)
        assert len(strengths.unique()) > 0.9 * len(strengths)


def subject(name="net"):
    return Subject(name, "ours", "0" * 64, "mlp", "digits", 0.1, 0)


def test_test_data_never_reach_the_weights(trained, tmp_path):
    """The same study with a poisoned test split gives the same hardened network, bit for bit."""
    network, loaded, _ = trained
    poison = Split(loaded.test.x.flip(0).contiguous() * 0, (loaded.test.y + 1) % 10)
    poisoned = DataSet(
        loaded.name, loaded.classes, loaded.train, loaded.validation, poison, loaded.mean, loaded.std, "poison", 0
    )
    plan = Plan(MEASURED, HardenSettings(epochs=2, batch_size=64))
    records = []
    for name, one in (("clean", loaded), ("poisoned", poisoned)):
        files = RecordFiles(tmp_path / name)
        records.append(study(subject(), lambda: copy.deepcopy(network), one, files, plan, Silent()))
    assert records[0]["after"]["clean"] != records[1]["after"]["clean"]  # the poison was there
    histories = [[{**row, "seconds": 0} for row in one["history"]] for one in records]
    assert histories[0] == histories[1]
    weights = [load(RecordFiles(tmp_path / name).hardened(subject())).state_dict() for name in ("clean", "poisoned")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_it_can_be_stopped(trained):
    network, loaded, bounds = trained
    with pytest.raises(Interrupted, match="epoch 1 of 6"):
        harden(network, loaded.train, bounds, SETTINGS, watcher=Silent(stop_after=3))


def test_a_loss_that_is_no_number_is_an_error(trained):
    network, loaded, bounds = trained
    with pytest.raises(DivergedError, match="learning rate below"):
        harden(network, loaded.train, bounds, HardenSettings(epochs=1, optimiser="sgd", learning_rate=1e30))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"epsilon": (0.2, 0.1)}, "epsilon must be growing"),
        ({"epochs": -1}, "epochs must be at least 0"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
    ],
)
def test_wrong_settings_are_refused(values, text):
    with pytest.raises(SettingsError, match=text):
        HardenSettings(**({"epochs": 1} | values))


def test_wrong_strengths_are_refused():
    with pytest.raises(SettingsError, match="noise must be between 0 and 1"):
        MeasureSettings(noise=(3.0,))
    with pytest.raises(SettingsError, match="pgd_steps must be at least 1"):
        MeasureSettings(pgd_steps=0)
