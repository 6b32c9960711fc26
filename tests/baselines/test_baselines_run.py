"""Every baseline from data to a pruned network: figures counted again, same seed same result, and what can go wrong."""

from dataclasses import replace

import pytest
import torch
from baseline_examples import NAMES, a_run, digits, lenet, normed, quick, residual, small_mlp
from torch import nn

from bayesprune import baselines, models
from bayesprune.baselines import BaselineSettings, recipe, running
from bayesprune.baselines.recipes import NETWORKS, RECIPES
from bayesprune.baselines.running import learning_rate, make_optimiser
from bayesprune.data import DataSet, Split
from bayesprune.likelihoods import GaussianRegression
from bayesprune.structure import close, trace
from bayesprune.surgery import shrink
from bayesprune.turbo import CollapsedError, DivergedError, Interrupted, SettingsError

KEYS = {
    *("method", "accuracy", "accuracy_unpruned", "accuracy_drop", "validation", "validation_unpruned"),
    *("nonzero_fraction", "dense_fraction", "structure", "macs", "macs_dense", "macs_removed", "parameters"),
    *("parameters_dense", "seed", "seconds", "status", "notes", "versions", "hardware", "proof", "macs_shrunk"),
}
# Share of weights that may be left, and of MACs: what these settings reach, with room.
SIZES = {
    "variational-dropout": (0.6, 1.0),
    "group-variational-dropout": (0.9, 0.9),
    "polarization": (0.9, 0.9),
    "snip": (0.3, 1.0),
    "magnitude": (0.1, 1.0),
    "l1": (0.6, 1.0),
    "group-norm": (0.45, 0.4),
}
STRONG = {
    "group-variational-dropout": {"strength": 3.0},
    "snip": {"target_nonzero": 0.3},
    "group-norm": {"target_macs": 0.4},
}


@pytest.fixture(scope="module", params=NAMES)
def finished(request):
    """A baseline on digits: its name, the data, the network and the result."""
    name, data, network = request.param, digits(), small_mlp()
    settings = quick(name, **STRONG.get(name, {}))
    return name, data, network, baselines.run(name, network, data, settings=settings)


def test_the_network_is_smaller_and_good(finished):
    name, _, _, result = finished
    nonzero, macs = SIZES[name]
    assert result.summary["nonzero_fraction"] <= nonzero
    assert 1 - result.summary["macs_removed"] <= macs
    assert result.summary["accuracy"] > 0.9
    assert result.summary["accuracy_unpruned"] > 0.9
    assert result.summary["status"] == "finished"


def test_dead_weights_are_zero_and_masks_are_closed(finished):
    _, data, network, result = finished
    for name, mask in result.masks.items():
        weight = network.get_submodule(name).weight
        assert mask.dtype == torch.bool
        assert mask.shape == weight.shape
        assert (weight[~mask] == 0).all()
        assert (weight[mask] != 0).all()
    closed = close(trace(network, data.train.x[:2]), result.masks)
    assert all(torch.equal(closed[name], mask) for name, mask in result.masks.items())


def test_the_network_is_the_plain_one_that_was_given(finished):
    _, _, network, result = finished
    assert result.network is network
    assert type(network) is nn.Sequential
    assert list(network.state_dict()) == list(small_mlp().state_dict())
    assert {type(m) for m in network.modules()} == {type(m) for m in small_mlp().modules()}


def test_the_shrunk_network_computes_the_same(finished):
    _, data, network, result = finished
    x = data.test.x.double()
    again = shrink(network, result.masks, data.train.x[:2]).double().eval()
    expected = network.double().eval()(x)
    network.float()
    assert torch.allclose(again(x), expected, atol=1e-5)
    assert torch.allclose(result.shrunk.eval()(data.test.x).double(), expected, atol=1e-4)
    assert result.summary["macs_shrunk"] <= result.summary["macs"]


def test_the_figures_are_those_of_the_network(finished):
    name, data, network, result = finished
    summary = result.summary
    assert set(summary) >= KEYS
    assert summary["method"] == name
    network.eval()
    accuracy = (network(data.test.x).argmax(1) == data.test.y).double().mean().item()
    assert summary["accuracy"] == pytest.approx(accuracy)
    live = {n: network.get_submodule(n).weight != 0 for n in ("fc1", "fc2", "out")}
    weights = sum(m.numel() for m in live.values())
    assert summary["nonzero_fraction"] == sum(int(m.sum()) for m in live.values()) / weights
    first, second = (int(live[n].any(1).sum()) for n in ("fc1", "fc2"))
    assert summary["structure"] == [first, second]
    assert summary["macs"] == 64 * first + first * second + second * 10
    assert summary["macs_removed"] == pytest.approx(1 - summary["macs"] / (64 * 32 + 32 * 16 + 160))


def test_there_is_a_row_for_every_epoch(finished):
    name, _, _, result = finished
    settings = quick(name)
    expected = ["warmup"] * 8 + ["prune"] * settings.prune_epochs + ["finetune"] * settings.finetune_epochs
    assert [row["phase"] for row in result.history] == expected
    for row in result.history:
        assert {"epoch", "epochs", "loss", "validation_accuracy", "validation_nll", "seconds"} <= set(row)
        assert ("nonzero_fraction" in row) == (row["phase"] != "warmup")
    last = result.history[-1]
    assert last["nonzero_fraction"] == result.summary["nonzero_fraction"]
    assert last["structure"] == result.summary["structure"]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_network(name):
    settings = quick(name, warmup_epochs=2, prune_epochs=3, finetune_epochs=1)
    data = digits()
    state = torch.get_rng_state()
    first = baselines.run(name, small_mlp(), data, settings=settings)
    assert torch.equal(torch.get_rng_state(), state)  # the caller's random numbers are left alone
    torch.manual_seed(123)
    second = baselines.run(name, small_mlp(), data, settings=settings)
    pairs = zip(first.network.parameters(), second.network.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert first.summary["accuracy"] == second.summary["accuracy"]


@pytest.mark.parametrize("network", [lenet, normed, residual])
@pytest.mark.parametrize("name", NAMES)
def test_convs_batchnorms_and_shortcuts(name, network):
    settings = quick(name, warmup_epochs=2, prune_epochs=3, finetune_epochs=1, target_nonzero=0.3, target_macs=0.5)
    if name == "snip":  # it begins anew
        settings = replace(settings, prune_epochs=20)
    model = network()
    result = baselines.run(name, model, digits(), settings=settings)
    assert type(model) is type(network())
    assert list(model.state_dict()) == list(network().state_dict())
    assert result.summary["proof"]["max_rel_64"] < 1e-10
    assert result.summary["accuracy"] > 0.5
    for layer, mask in result.masks.items():
        assert (model.get_submodule(layer).weight[~mask] == 0).all()


def test_the_horseshoe_and_element_sparsity():
    settings = quick("group-variational-dropout", scale_prior="horseshoe", element_sparsity=True, strength=3.0)
    result = baselines.run("group-variational-dropout", small_mlp(), digits(), settings=settings)
    assert result.summary["accuracy"] > 0.9
    assert result.summary["nonzero_fraction"] < 0.5
    assert result.summary["macs_removed"] > 0.1


def test_regression():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=generator)
    y = (x[:, :1] * 2 - x[:, 1:2]).clone()
    data = DataSet.from_tensors(x, y, test=0.2, validation=0.2)
    network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    settings = quick("magnitude", target_nonzero=0.5)
    result = baselines.run("magnitude", network, data, settings=settings, likelihood=GaussianRegression(0.1))
    assert result.summary["r2"] > 0.9
    assert "accuracy_drop" not in result.summary


def test_a_trained_network_is_taken_as_it_is():
    network, data = small_mlp(), digits()
    first = baselines.run("magnitude", network, data, settings=quick("magnitude"))
    again = baselines.run("snip", network, data, settings=quick("snip", warmup_epochs=0, prune_epochs=0))
    assert again.summary["accuracy_unpruned"] == first.summary["accuracy"]


def test_snip_begins_with_the_first_weights():
    """With no epochs under the mask, what is left of the network are its first weights."""
    network = small_mlp()
    baselines.run("snip", network, digits(), settings=quick("snip", warmup_epochs=2, prune_epochs=0))
    first = small_mlp()
    for name in ("fc1", "fc2", "out"):
        weight = network.get_submodule(name).weight
        assert torch.equal(weight[weight != 0], first.get_submodule(name).weight[weight != 0])


# ------------------------------------------------------------------------------------------------ what goes wrong


def test_unknown_names_and_missing_validation():
    with pytest.raises(ValueError, match="unknown baseline 'snap'; choose one of"):
        baselines.run("snap", small_mlp(), digits())
    with pytest.raises(SettingsError, match="validation split"):
        baselines.run("snip", small_mlp(), replace(digits(), validation=None), settings=quick("snip"))
    frozen = small_mlp().requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to compress"):
        a_run(network=frozen)


def test_nan_is_an_error_that_says_where():
    data = digits()
    x = data.train.x.clone()
    x[3] = torch.nan
    broken = replace(data, train=Split(x, data.train.y))
    with pytest.raises(DivergedError, match=r"warmup epoch 1 of l1; try a learning rate below 0\.004"):
        baselines.run("l1", small_mlp(), broken, settings=quick("l1"))


def test_the_error_names_the_rate_of_the_phase_that_diverged():
    settings = quick("l1", warmup_epochs=1, prune_optimiser="sgd", prune_learning_rate=1e9)
    with pytest.raises(DivergedError, match=r"in prune epoch 1 of l1; try a learning rate below 1e\+09"):
        baselines.run("l1", small_mlp(), digits(), settings=settings)


def test_a_dead_layer_is_an_error_with_a_remedy():
    with pytest.raises(CollapsedError, match=r"l1 leaves no live weight in .*smaller strength"):
        baselines.run("l1", small_mlp(), digits(), settings=quick("l1", strength=1e4, prune_epochs=2))


def test_a_target_out_of_reach_is_said():
    settings = quick("group-norm", target_macs=0.001, warmup_epochs=0, prune_epochs=0, finetune_epochs=0)
    result = baselines.run("group-norm", small_mlp(), digits(), settings=settings)
    assert result.summary["status"].startswith("budget not met: MACs")


def test_a_recorder_hears_everything_and_can_stop():
    class Listener:
        def __init__(self):
            self.rows, self.steps = [], 0

        def row(self, row):
            self.rows.append(row)

        def step(self, done, total):
            self.steps += 1

        def note(self, text):
            pass

        def should_stop(self):
            return len(self.rows) == 3

    listener = Listener()
    with pytest.raises(Interrupted, match=r"l1 was stopped after warmup epoch 3 of 8; a baseline has no checkpoints"):
        baselines.run("l1", small_mlp(), digits(), settings=quick("l1"), recorder=listener)
    assert len(listener.rows) == 3
    assert listener.steps == 3 * 20


# ------------------------------------------------------------------------------------------------ settings, recipes


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prune_epochs": -1}, "prune_epochs must be at least 0, got -1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0, got 0.0; try 0.003"),
        ({"prune_learning_rate": 0.1}, "prune_optimiser and prune_learning_rate go together, got None and 0.1"),
        ({"prune_optimiser": "sgd", "prune_learning_rate": 0.0}, "prune_learning_rate must be above 0, got 0.0"),
        ({"strength": -1.0}, "strength must be at least 0"),
        ({"l1_threshold": -0.1}, "l1_threshold must be at least 0, got -0.1; try 0.01"),
        ({"macs_spread": 0.5}, "macs_spread must be at least 1"),
        ({"strength_ramp": (0.5, 0.2)}, "two growing fractions"),
        ({"target_macs": 1.0}, "target_macs must be a fraction between 0 and 1"),
        ({"score": "best"}, "score must be one of magnitude, normalised, lamp"),
        ({"gradual": 1}, "gradual must be true or false"),
    ],
)
def test_settings_that_cannot_be(values, message):
    with pytest.raises(SettingsError, match=message):
        BaselineSettings(**values)


def test_settings_survive_a_dictionary_and_suggest_names():
    settings = BaselineSettings(strength=0.5, strength_ramp=(0.1, 0.4))
    assert BaselineSettings.from_dict(settings.as_dict()) == settings
    assert BaselineSettings.from_dict({"learning_rate": "1e-3"}).learning_rate == 1e-3
    with pytest.raises(SettingsError, match=r"unknown setting 'strenght'; did you mean strength"):
        BaselineSettings.from_dict({"strenght": 1})


def test_small_data_get_more_epochs():
    settings = BaselineSettings(batch_size=100, prune_epochs=10, warmup_epochs=2)
    assert settings.for_examples(10**6) == settings
    assert settings.for_examples(1000).prune_epochs == 300
    assert settings.for_examples(1000).warmup_epochs == 60


@pytest.mark.parametrize("network", NETWORKS["best"])
@pytest.mark.parametrize("name", NAMES)
def test_recipes(name, network):
    paper, best = recipe(name, "paper", network), recipe(name, "best", network)
    assert paper.learning_rate == 0.01
    assert paper.batch_size == (64 if network == "lenet5" else 128)
    assert paper.finetune_epochs == (0 if name == "snip" else 15 if network == "lenet5" else 30)
    # Equal epochs on the network that is deployed; snip's begins after the warm-up of its twin.
    spent = best.prune_epochs + best.finetune_epochs + (0 if name == "snip" else best.warmup_epochs)
    assert spent == (145 if network == "vgg11" else 80)


def test_recipes_that_are_not_there():
    assert set(RECIPES["paper"]) == set(RECIPES["best"]) == {"unpruned", *NAMES}
    for arguments in (("snap",), ("snip", "worst"), ("snip", "best", "lenet6")):
        with pytest.raises(SettingsError, match="choose one of"):
            recipe(*arguments)


def test_learning_rates():
    settings = BaselineSettings(learning_rate=1.0, finetune_rate=0.5, prune_schedule="linear")
    assert [learning_rate(settings, "warmup", d) for d in (0, 0.5)] == pytest.approx([1, 0.5])
    assert [learning_rate(settings, "finetune", d) for d in (0, 0.5)] == pytest.approx([0.5, 0.25])
    assert [learning_rate(settings, "prune", d) for d in (0, 0.25)] == pytest.approx([1, 0.75])
    assert learning_rate(replace(settings, prune_schedule="constant"), "prune", 0.9) == 1


@pytest.mark.parametrize(
    ("name", "decay"), [("variational-dropout", 0.0), ("group-variational-dropout", 0.0), ("polarization", 1e-3)]
)
def test_pruning_epochs_may_have_an_optimiser_of_their_own(name, decay, monkeypatch):
    """And weight decay acts in them, but where a KL takes its place."""
    made = []

    def make(parameters, settings):
        made.append((settings.optimiser, settings.learning_rate, settings.weight_decay))
        return make_optimiser(parameters, settings)

    monkeypatch.setattr(running, "make_optimiser", make)
    epochs = {"warmup_epochs": 1, "prune_epochs": 1, "finetune_epochs": 1}
    settings = quick(name, **epochs, optimiser="sgd", learning_rate=0.05, weight_decay=1e-3)
    own = replace(settings, prune_optimiser="adam", prune_learning_rate=2e-3)
    baselines.run(name, small_mlp(), digits(), settings=own)
    assert made == [("sgd", 0.05, 1e-3), ("adam", 2e-3, decay), ("sgd", 0.05, 1e-3)]
    made.clear()
    baselines.run(name, small_mlp(), digits(), settings=settings)
    assert made == [("sgd", 0.05, 1e-3), ("sgd", 0.05, decay), ("sgd", 0.05, 1e-3)]


def test_the_strength_grows_along_its_ramp():
    run = a_run("l1", strength=2.0, strength_ramp=(0.2, 0.6))
    assert [run.ramped_strength(done) for done in (0, 0.2, 0.4, 0.6, 0.9)] == pytest.approx([0, 0, 1, 2, 2])
    at_once = a_run("l1", strength=2.0, strength_ramp=(0.5, 0.5))
    assert [at_once.ramped_strength(done) for done in (0, 0.4, 0.5)] == [0, 0, 2]
    assert a_run("l1", strength=None).strength == baselines.STRENGTHS["l1"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_steps_are_captured_on_a_gpu(name, monkeypatch):
    """The result on a GPU is as good as on the CPU, and its steps ran as a CUDA graph."""
    captured = []
    original = baselines.running.Step._capture
    monkeypatch.setattr(
        baselines.running.Step, "_capture", lambda self, x, y: (captured.append(1), original(self, x, y))[1]
    )
    from bayesprune import data

    on_gpu = data.load("digits", validation=0.1, seed=0, device="cuda")
    on_cpu = data.load("digits", validation=0.1, seed=0)
    result = baselines.run(name, normed().cuda(), on_gpu, settings=quick(name))
    expected = baselines.run(name, normed(), on_cpu, settings=quick(name))
    assert captured
    assert result.history[0]["loss"] == pytest.approx(expected.history[0]["loss"], rel=0.02)
    assert result.summary["accuracy"] > expected.summary["accuracy"] - 0.06


# ------------------------------------------------------------------------------------------------ big recipes, dense


@pytest.mark.parametrize(
    ("protocol", "network"), [("best", "alexnet-small"), ("paper", "alexnet-small"), ("best", "vgg11")]
)
@pytest.mark.parametrize("name", NAMES)
def test_recipes_of_larger_networks_take_a_step(name, protocol, network):
    """One batch of noise in every phase of a recipe: nothing is learned, but everything runs."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 3, 32, 32, generator=generator), torch.arange(24) % 4
    data = DataSet.from_tensors(x, y, test=0.25, validation=0.25)
    model = models.create(network, (3, 32, 32), 4, generator=generator)
    known = recipe(name, protocol, network)
    epochs = {f"{phase}_epochs": min(1, getattr(known, f"{phase}_epochs")) for phase in ("warmup", "prune", "finetune")}
    result = baselines.run(name, model, data, settings=replace(known, batch_size=8, **epochs))
    assert result.summary["proof"]["max_rel_64"] < 1e-10
    assert len(result.history) == sum(epochs.values())


def test_dense_training_prunes_nothing():
    settings = quick("magnitude", warmup_epochs=8, prune_epochs=0, finetune_epochs=0)
    network, data = small_mlp(), digits()
    result = baselines.train_dense(network, data, settings=settings)
    assert result.summary["method"] == "unpruned"
    assert (result.summary["nonzero_fraction"], result.summary["macs_removed"]) == (1, 0)
    assert result.summary["accuracy"] == result.summary["accuracy_unpruned"] > 0.9
    assert all(mask.all() for mask in result.masks.values())
