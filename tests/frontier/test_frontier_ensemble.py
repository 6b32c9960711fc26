"""A member of an ensemble is what `compress` makes of it alone; a sick member leaves the others alone."""

import copy
import dataclasses

import frontier_examples as examples
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bayesprune import frontier
from bayesprune.frontier.ensemble import Ensemble
from bayesprune.runs import checkpoint
from bayesprune.turbo import CollapsedError, Interrupted, SettingsError, compress


def alone(make, data, settings):
    return compress(make(settings), data, settings=dataclasses.replace(settings, seed=examples.ORDER))


def assert_same_network(member, result, tolerance=1e-9):
    for name, value in result.network.state_dict().items():
        torch.testing.assert_close(member.network.state_dict()[name], value, rtol=0, atol=tolerance)
    assert member.masks.keys() == result.masks.keys()
    for name, mask in result.masks.items():
        assert torch.equal(member.masks[name], mask)
        assert not mask.all()


def assert_same(member, result):
    assert member.status == "finished"
    assert_same_network(member, result)
    summary = result.summary
    assert member.validation["accuracy"] == summary["validation"]["accuracy"]
    assert member.validation_unpruned["accuracy"] == summary["validation_unpruned"]["accuracy"]
    record = member.record()
    for name in ("nonzero_fraction", "dense_fraction", "macs", "macs_dense", "macs_removed", "structure"):
        assert record[name] == summary[name]
    assert member.notes == summary["notes"]


@pytest.mark.parametrize("name", ["mlp", "lenet5", "normed"])
def test_members_are_what_single_runs_give(name):
    data = examples.in_double(examples.coloured_images() if name == "normed" else examples.digits())
    settings = examples.with_values(examples.VARIED, unit_strength=30.0) if name == "normed" else examples.VARIED

    def make(one):
        return getattr(examples, name)(one).double()

    members = frontier.train(make, data, settings, order_seed=examples.ORDER)
    sizes = [member.size.nonzero_fraction for member in members]
    assert len(set(sizes)) == 3
    assert max(sizes) < 0.7
    for member, one in zip(members, settings, strict=True):
        assert_same(member, alone(make, data, one))


def test_schedules_ramps_and_options_are_those_of_single_runs():
    data = examples.in_double(examples.digits(200))
    shared = {"label_smoothing": 0.1, "normalise_fan_in": False, "augment": True, "warmup_epochs": 1}
    settings = examples.with_values(examples.VARIED[:2], **shared, unit_strength=10.0, weight_strength=0.1)
    settings[1] = dataclasses.replace(settings[1], prune_decay=0.1, finetune_rate=1.0, weight_start=0.2)

    def make(one):
        return examples.mlp(one).double()

    members = frontier.train(make, data, settings, order_seed=examples.ORDER)
    for member, one in zip(members, settings, strict=True):
        # Crops of such small images leave little to learn: some end up guessing, all the same.
        assert_same_network(member, alone(make, data, one))


def test_a_layer_that_dies_is_taken_back_as_in_a_single_run():
    data = examples.in_double(examples.digits())
    ramps = {"weight_ramp": (0.0, 0.1), "unit_ramp": (0.0, 0.1), "prune_epochs": 8}
    deadly = dataclasses.replace(examples.QUICK, unit_strength=5000.0, weight_strength=10.0, **ramps)
    settings = [deadly, dataclasses.replace(deadly, unit_strength=100.0, weight_strength=1.0)]

    def make(one):
        return examples.mlp(one).double()

    recorder = examples.Recording()
    members = frontier.train(make, data, settings, recorder=recorder)
    (note,) = recorder.notes
    assert note.startswith("member 0: prune epoch 6: no live weight left in fc1, fc2, out")
    for member, one in zip(members, settings, strict=True):
        assert_same(member, compress(make(one), data, settings=one))


def test_a_layer_that_stays_dead_ends_its_member_only():
    data = examples.in_double(examples.digits(200))
    settings = examples.with_values(examples.VARIED[:2], prune_epochs=0, warmup_epochs=1, finetune_epochs=2)
    settings[0] = dataclasses.replace(settings[0], activity=1e-9)

    def make(one):
        return examples.mlp(one).double()

    members = frontier.train(make, data, settings, order_seed=examples.ORDER)
    with pytest.raises(CollapsedError):
        alone(make, data, settings[0])
    assert members[0].status == "collapsed: no live weight is left in fc1, fc2, out"
    assert_same_network(members[1], alone(make, data, settings[1]))


def test_a_member_that_diverges_does_not_touch_the_others():
    data = examples.digits(200)
    settings = [examples.QUICK, dataclasses.replace(examples.QUICK, learning_rate=1e30)]
    members = frontier.train(examples.mlp, data, settings)
    assert [member.status.split(":")[0] for member in members] == ["finished", "diverged"]
    assert "1e+30" in members[1].status
    assert members[1].size is None
    (lonely,) = frontier.train(examples.mlp, data, settings[:1])
    for one, other in zip(members[0].network.parameters(), lonely.network.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_without_pruning_epochs_the_first_supports_decide():
    data = examples.in_double(examples.digits(200))
    settings = examples.with_values(examples.VARIED[:2], prune_epochs=0, warmup_epochs=1, finetune_epochs=1)

    def make(one):
        return examples.mlp(one).double()

    for member, one in zip(frontier.train(make, data, settings, order_seed=examples.ORDER), settings, strict=True):
        assert_same(member, alone(make, data, one))


def test_one_network_for_all_stays_as_it_is():
    data, network = examples.digits(200), examples.mlp(examples.QUICK)
    before = copy.deepcopy(network.state_dict())
    short = {"warmup_epochs": 0, "prune_epochs": 1, "finetune_epochs": 0}
    members = frontier.train(network, data, examples.with_values(examples.VARIED[:2], **short))
    assert [member.settings.seed for member in members] == [0, 1]
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training


@pytest.mark.parametrize("stop_after", [1, 4, 8])
def test_stopped_and_resumed_it_is_the_same_to_the_bit(tmp_path, stop_after):
    data = examples.coloured_images()
    settings = examples.with_values(examples.VARIED, unit_strength=30.0)
    whole = frontier.train(examples.normed, data, settings)
    recorder = examples.Recording(stop_after)
    with pytest.raises(Interrupted):
        frontier.train(examples.normed, data, settings, recorder=recorder)
    assert len(recorder.rows) == stop_after
    checkpoint.save(tmp_path / "state.safetensors", recorder.saved)
    state = checkpoint.load(tmp_path / "state.safetensors")
    resumed = frontier.train(examples.normed, data, settings, resume=state)
    for one, other in zip(whole, resumed, strict=True):
        assert one.record() == other.record()
        for a, b in zip(one.network.state_dict().values(), other.network.state_dict().values(), strict=True):
            assert torch.equal(a, b)


def test_one_by_one_gives_the_same_members():
    data = examples.in_double(examples.digits(200))

    def make(one):
        return examples.mlp(one).double()

    both = [way(make, data, examples.VARIED[:2]) for way in (frontier.train, frontier.train_one_by_one)]
    for one, other in zip(*both, strict=True):
        assert one.size == other.size
        assert one.validation["accuracy"] == other.validation["accuracy"]
        assert other.settings == one.settings


def test_one_by_one_reports_what_failed():
    settings = [dataclasses.replace(examples.QUICK, learning_rate=1e30)]
    (member,) = frontier.train_one_by_one(examples.mlp, examples.digits(200), settings)
    assert member.status.startswith("diverged: ")
    assert member.size is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"optimiser": "sgd"}, "need optimiser = adam, got 'sgd'; run these one after another"),
        ({"family": "mean_field"}, "need family = collapsed"),
        ({"coupling": 0.2}, "need coupling = 0, got 0.2"),
        ({"p01": 0.3, "p10": 0.7}, "need p01 = None"),
        ({"groups": "tile"}, "need groups = weight"),
        ({"max_accuracy_drop": 0.5}, "need max_accuracy_drop = None"),
        ({"batch_size": 64}, "share batch_size, got 32, 64"),
        ({"prune_epochs": 3}, "share prune_epochs, got 5, 3"),
        ({"refresh_every": 1}, "share refresh_every"),
        ({"spike_rate": 2.0}, "larger mean precision"),
    ],
)
def test_settings_that_cannot_be_stacked(values, words):
    settings = [examples.QUICK, dataclasses.replace(examples.QUICK, **values)]
    with pytest.raises(SettingsError, match=words):
        frontier.train(examples.mlp, examples.digits(100), settings)


def test_networks_that_cannot_be_stacked():
    data, settings = examples.digits(100), examples.VARIED[:2]
    widths = iter((8, 16))
    with pytest.raises(SettingsError, match="one architecture"):
        frontier.train(lambda _: nn.Sequential(nn.Flatten(), nn.Linear(64, next(widths))), data, settings)
    for layer in (nn.Dropout(0.1), nn.BatchNorm1d(10, momentum=None)):
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), layer)
        with pytest.raises(SettingsError, match=f"2, a {type(layer).__name__}, cannot be trained in an ensemble"):
            frontier.train(network, data, settings)
    with pytest.raises(SettingsError, match="no parameter to train"):
        frontier.train(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False), data, settings)
    with pytest.raises(SettingsError, match="at least one setting"):
        frontier.train(examples.mlp, data, [])
    with pytest.raises(SettingsError, match="validation split"):
        frontier.train(examples.mlp, dataclasses.replace(data, validation=None), settings)


class NothingReadBack(TorchDispatchMode):
    """Fails where an operation needs a value on the host, which a CUDA graph cannot give."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function.overloadpacket._qualified_op_name not in (
            *("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select", "aten::is_nonzero"),
        )
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["lenet5", "normed"])
def test_a_step_reads_nothing_back_and_changes_its_tensors_in_place(name):
    data = examples.coloured_images() if name == "normed" else examples.digits(100)
    networks = [getattr(examples, name)(one) for one in examples.VARIED]
    ensemble = Ensemble(networks, data, examples.VARIED, 0, examples.Recording())
    step, x, y = ensemble.step, data.train.x[:32], data.train.y[:32]
    step.rates.fill_(1e-3)
    kept = {name: (one.data_ptr(), one.clone()) for name, one in ensemble._tensors().items()}
    with NothingReadBack():
        losses = [step(x, y) for _ in range(3)]
    assert losses[0].shape == (3,)
    assert bool((losses[2] < losses[0]).all())
    changed = {name for name, one in ensemble._tensors().items() if not torch.equal(one, kept[name][1])}
    assert changed >= {"flat", "first", "second", "steps"}
    assert all(one.data_ptr() == kept[name][0] for name, one in ensemble._tensors().items())
    if name == "normed":
        assert {"buffer.norm1.running_mean", "buffer.norm1.running_var"} <= changed


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lenet5", "normed"])
def test_the_graph_of_a_step_computes_what_the_cpu_does(name):
    loaded = examples.in_double(examples.coloured_images() if name == "normed" else examples.digits())
    settings = examples.with_values(examples.VARIED, unit_strength=30.0)

    def on(device):
        def split(one):
            return dataclasses.replace(one, x=one.x.to(device), y=one.y.to(device))

        moved = {part: split(getattr(loaded, part)) for part in ("train", "validation", "test")}
        data = dataclasses.replace(loaded, **moved)
        return frontier.train(lambda one: getattr(examples, name)(one).double().to(device), data, settings)

    for here, there in zip(on("cpu"), on("cuda"), strict=True):
        assert here.size == there.size
        for a, b in zip(here.network.parameters(), there.network.parameters(), strict=True):
            torch.testing.assert_close(a, b.cpu(), rtol=0, atol=1e-7)
