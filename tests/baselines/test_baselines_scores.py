"""SNIP, magnitude, L1, polarization and group-norm: their scores, thresholds and steps against plain answers."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
import torch_pruning as tp
from baseline_examples import a_run, digits, in_float64, lenet, normed, residual, small_mlp
from scipy import optimize
from torch import nn

from bayesprune.baselines import group_norm, l1, magnitude, polarization, snip
from bayesprune.baselines.scoring import top
from bayesprune.structure import close, live_units, macs, to_weights, trace, unit_costs

# ------------------------------------------------------------------------------------------------ top, snip


def test_top_keeps_the_exact_number_and_the_highest():
    torch.manual_seed(0)
    scores = {"a": torch.rand(7, 5), "b": torch.rand(3, 3, 3)}
    for share in (0.05, 0.3, 0.5, 0.99):
        live = top(scores, share)
        kept = torch.cat([scores[n][live[n]] for n in scores])
        gone = torch.cat([scores[n][~live[n]] for n in scores])
        assert len(kept) == round(share * 62)
        assert kept.min() > gone.max()


def test_top_keeps_a_weight_in_every_layer_and_the_number_with_ties():
    scores = {"a": torch.ones(50), "b": torch.zeros(50), "c": torch.full((4,), 0.5)}
    live = top(scores, 0.1)
    assert sum(int(mask.sum()) for mask in live.values()) == 10
    assert [int(live[n].sum()) for n in "abc"] == [8, 1, 1]
    assert sum(int(mask.sum()) for mask in top(scores, 0.001).values()) == 3


def test_snip_scores_are_the_slopes_of_connection_scales():
    """Finite differences of the loss as one connection c w goes away from c = 1."""
    data = in_float64(digits())
    run = a_run("snip", small_mlp(widths=(5, 4)).double(), data, snip_batches=1)
    twin = copy.deepcopy(run)
    scores = snip.sensitivities(run)
    batches = iter(snip.Batches(data.train, 64, twin.generator, drop_last=True))
    x, y = next(batches)

    def loss():
        with torch.no_grad():
            return float(run.likelihood.negative_log_likelihood(run.model(x), y))

    for name, weight in run.weights().items():
        for place in range(0, weight.numel(), 7):
            kept = float(weight.view(-1)[place])
            values = []
            for c in (1 + 1e-5, 1 - 1e-5):
                weight.view(-1)[place] = c * kept
                values.append(loss())
            weight.view(-1)[place] = kept
            assert float(scores[name].view(-1)[place]) == pytest.approx(
                abs(values[0] - values[1]) / 2e-5, rel=1e-4, abs=1e-8
            )


def test_snip_leaves_the_network_and_its_statistics_alone():
    run = a_run("snip", normed(), snip_batches=3)
    before = copy.deepcopy(run.model.state_dict())
    several = snip.sensitivities(run)
    assert all(torch.equal(before[k], v) for k, v in run.model.state_dict().items())
    one = snip.sensitivities(a_run("snip", normed()))
    assert any(not torch.allclose(several[n], one[n]) for n in one)


# ------------------------------------------------------------------------------------------------ magnitude


def test_magnitude_scores_are_those_of_plain_loops():
    torch.manual_seed(0)
    weight = torch.randn(4, 3, dtype=torch.float64)
    rms = math.sqrt(sum(float(w) ** 2 for w in weight.flatten()) / 12)
    flat = [float(w) for w in weight.flatten()]
    lamp = [w * w / sum(v * v for v in flat if abs(v) >= abs(w)) for w in flat]
    assert magnitude.scores_of(weight, "magnitude").flatten().tolist() == [abs(w) for w in flat]
    assert magnitude.scores_of(weight, "normalised").flatten().tolist() == pytest.approx([abs(w) / rms for w in flat])
    assert magnitude.scores_of(weight, "lamp").flatten().tolist() == pytest.approx(lamp)


def test_lamp_of_a_dead_layer_is_zero_and_of_its_largest_weight_one():
    assert magnitude.scores_of(torch.zeros(3, 2), "lamp").tolist() == [[0, 0]] * 3
    scores = magnitude.scores_of(torch.tensor([1.0, -2.0, 0.0, 0.5]), "lamp")
    assert scores.tolist() == pytest.approx([1 / 5, 1, 0, 0.25 / 5.25])


def test_weights_on_no_path_leave_their_places_to_others():
    """fc1 -> fc2: a neuron that nothing reads takes no weight, and the number is still exact."""
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    structure = trace(network, torch.zeros(2, 3))
    scores = {"0": torch.full((4, 3), 0.1), "2": torch.full((2, 4), 0.1)}
    scores["0"][0] = 5.0  # the best inputs, of a neuron
    scores["2"][:, 0] = 0.01  # whose outputs are the worst
    scores["2"][:, 1] = 4.0
    plain, connected = top(scores, 0.25), magnitude.top_connected(structure, scores, 0.25)
    assert int(sum(m.sum() for m in plain.values())) == 5
    assert int(sum(m.sum() for m in close(structure, plain).values())) == 0
    assert not connected["0"][0].any()
    assert int(sum(m.sum() for m in connected.values())) == 5
    assert all(torch.equal(close(structure, connected)[n], connected[n]) for n in connected)


def test_the_cubic_schedule():
    assert magnitude.kept_share(0, 0.1) == 1
    assert magnitude.kept_share(0.5, 0.1) == pytest.approx(0.1 + 0.9 / 8)
    assert magnitude.kept_share(0.9, 0.2) == pytest.approx(0.2 + 0.8 * 0.001)
    assert magnitude.kept_share(1, 0.1) == magnitude.kept_share(1.5, 0.1) == 0.1


@pytest.mark.parametrize("gradual", [True, False])
def test_the_share_follows_the_schedule(gradual):
    run = a_run(target_nonzero=0.2, prune_epochs=4, gradual=gradual)
    total = sum(w.numel() for w in run.weights().values())
    shares = []
    original = run.train

    def watching(*args, current=None, **values):
        def counted():
            masks = current()
            shares.append(sum(float(m.sum()) for m in masks.values()) / total)
            return masks

        original(*args, current=counted, **values)

    run.train = watching
    masks = magnitude.prune(run)
    expected = [magnitude.kept_share(e / 4, 0.2) if gradual else 0.2 for e in (1, 2, 3, 4)]
    assert shares == pytest.approx(expected, abs=1 / total)
    assert all((run.weights()[n][m == 0] == 0).all() for n, m in masks.items())


# ------------------------------------------------------------------------------------------------ l1


@pytest.mark.parametrize("by", [0.0, 0.3, 1.5])
def test_the_l1_step_minimises_its_objective(by):
    weights = torch.tensor([-2.0, -0.3, -0.01, 0.0, 0.2, 0.31, 1.4, 3.0], dtype=torch.float64)
    found = weights.clone()
    l1.shrink_(found, torch.tensor(by, dtype=torch.float64))
    for w, v in zip(weights.tolist(), found.tolist(), strict=True):
        best = optimize.minimize_scalar(
            lambda u, w=w: 0.5 * (u - w) ** 2 + by * abs(u), bounds=(-4, 4), method="bounded", options={"xatol": 1e-10}
        )
        assert v == pytest.approx(best.x, abs=1e-6)
    assert (found[weights.abs() <= by] == 0).all()


@pytest.mark.parametrize("threshold", [0.0, 0.05])
def test_l1_keeps_what_is_above_its_threshold(threshold):
    run = a_run("l1", strength=0.1, normalise=False, l1_threshold=threshold, prune_epochs=2)
    masks = l1.prune(run)
    for name, weight in run.weights().items():
        assert torch.equal(masks[name], weight.abs() > threshold)
        assert masks[name].any()
        assert (weight == 0).any()


# ------------------------------------------------------------------------------------------------ polarization


def test_the_polarization_penalty_and_its_gradient():
    torch.manual_seed(0)
    scales = [torch.rand(4, dtype=torch.float64), torch.rand(3, dtype=torch.float64)]

    def by_hand(parts):
        values = [float(v) for part in parts for v in part]
        mean = sum(values) / len(values)
        return 1.3 * sum(map(abs, values)) - sum(abs(v - mean) for v in values)

    assert float(polarization.polarization(scales, 1.3)) == pytest.approx(by_hand(scales))
    first = scales[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(polarization.polarization([first, scales[1]], 1.3), first)
    for i in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[i] = 1e-6
        difference = by_hand([scales[0] + step, scales[1]]) - by_hand([scales[0] - step, scales[1]])
        assert float(slope[i]) == pytest.approx(difference / 2e-6, abs=1e-6)


def test_dear_channels_are_penalised_more():
    run = a_run("polarization", lenet())
    names = ["conv1", "conv2", "fc1"]
    factors = polarization.cost_factors(run.structure, names, 20.0)
    units = torch.cat([layer.out_units for layer in run.structure.layers if layer.name in names])
    costs = unit_costs(run.structure, 1.0)[units]
    assert factors.min() == pytest.approx(1)
    assert factors.max() == pytest.approx(20)
    slope = math.log(20) / math.log(float(costs.max() / costs.min()))
    assert torch.allclose(factors.double(), (costs / costs.min()) ** slope, rtol=1e-5)
    assert (polarization.cost_factors(run.structure, names, 1.0) == 1).all()
    assert (polarization.cost_factors(run.structure, ["fc1"], 20.0) == 1).all()
    scales = [torch.rand(6), torch.rand(16), torch.rand(120)]
    joint = torch.cat(scales)
    by_hand = sum(float(f * (1.3 * g - abs(g - joint.mean()))) for f, g in zip(factors, joint, strict=True))
    assert float(polarization.polarization(scales, 1.3, factors)) == pytest.approx(by_hand, rel=1e-4)


def test_polarization_pulls_small_scales_down_and_large_ones_up():
    scales = torch.tensor([0.1, 0.2, 0.8, 0.9]).requires_grad_()
    polarization.polarization([scales], 1.2 - 0.4).backward()
    assert (scales.grad[:2] > 0).all()
    assert (scales.grad[2:] < 0).all()


@pytest.mark.parametrize(
    ("scales", "low", "high"),
    [
        ([0.0] * 20 + [0.6, 0.62, 0.65, 0.7], 0.0, 0.6),  # two heaps
        ([0.001] * 9 + [0.012] * 5 + [0.023] * 2 + [0.5] * 7, 0.023, 0.5),  # a heap with a tail
        ([0.55, 0.6, 0.6, 0.65], 0.0, 0.2),  # one heap away from zero: nothing goes
        ([0.3] * 5, 0.0, 0.2),  # ties
        ([0.0] * 6, 0.0, 0.2),
        ([1.0] * 4, 0.0, 0.2),
        ([0.04] * 9 + [0.05] * 30 + [0.06] * 9 + [0.3], 0.0, 0.04),  # a layer whose scales are all small: nothing goes
        ([0.008] + [0.015] * 9 + [0.025] * 5 + [0.5], 0.025, 0.5),  # a heap a little above zero
        ([0.03, 0.11, 0.4, 0.7], 0.0, 0.03),  # few channels, apart from each other
        ([0.0] * 3 + [0.03, 0.11, 0.4, 0.7], 0.0, 0.03),
    ],
)
def test_the_threshold_separates_the_heaps(scales, low, high):
    found = polarization.threshold(torch.tensor(scales))
    assert low < found < high
    assert found >= polarization.FALLBACK


@pytest.mark.parametrize("seed", range(20))
def test_the_threshold_is_the_first_valley(seed):
    """As Zhuang (2020), section 3.3, finds it: bin after bin."""
    generator = torch.Generator().manual_seed(seed)
    low = 0.06 * torch.rand(40, generator=generator) ** (1 + seed % 3)
    scales = torch.cat([low, 0.5 + 0.3 * torch.rand(20, generator=generator)]).double()
    counts = [sum(0.01 * i <= scale < 0.01 * (i + 1) for scale in scales.tolist()) for i in range(100)]
    for i in range(98):
        if counts[i + 1] <= counts[i] and counts[i + 2] >= counts[i + 1]:
            break
    assert polarization.threshold(scales) == pytest.approx(0.01 * (i + 1))


def test_live_channels_of_made_up_layers():
    assert polarization.live_channels(torch.tensor([0.0, 0.005, 0.5, 0.6])).tolist() == [False, False, True, True]
    assert polarization.live_channels(torch.tensor([0.5, 0.6])).all()
    assert polarization.live_channels(torch.zeros(3)).sum() == 1
    assert polarization.live_channels(torch.tensor([0.001, 0.002])).tolist() == [False, True]


@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(5, 4), lambda: nn.Conv2d(3, 4, 3), lambda: nn.Conv1d(3, 4, 2, bias=False)]
)
def test_scales_are_put_in_and_folded_without_a_trace(make):
    torch.manual_seed(0)
    layer = make().double()
    x = torch.randn(2, 5).double() if isinstance(layer, nn.Linear) else torch.randn(2, *layer.weight[0].shape).double()
    before = layer(x)
    scaled = polarization.ScaledLayer(layer)
    assert torch.allclose(scaled(x), before, rtol=0, atol=1e-14)
    with torch.no_grad():
        scaled.scale.copy_(torch.rand(4))
    during = scaled(x)
    scaled.fold()
    assert torch.allclose(layer(x), during, rtol=0, atol=1e-14)


def test_polarization_takes_batchnorms_where_there_are_any():
    run = a_run("polarization", normed(), warmup_epochs=1, prune_epochs=1)
    polarization.warm_up(run)
    scale = run.model.norm1.weight.detach()
    assert 0 <= float(scale.min()) <= float(scale.max()) <= 1
    assert float((scale - 0.5).abs().max()) < 0.3
    polarization.prune(run)
    assert list(run.model.state_dict()) == list(normed().state_dict())


# ------------------------------------------------------------------------------------------------ group norm


def plain_importances(network, channels):
    """Sums of squares around every channel of a conv-norm-conv-flatten-fc-out network, divided by their mean."""
    result = []
    network = copy.deepcopy(network).requires_grad_(False)
    layers = {
        "conv1": (network.norm1.weight, network.conv2.weight, 1),
        "conv2": (None, network.fc1.weight, 4),
        "fc1": (None, network.out.weight, 1),
    }
    for name, (scale, reader, pixels) in layers.items():
        sums = []
        for c in range(channels[name]):
            total = sum(float(w) ** 2 for w in getattr(network, name).weight[c].flatten())
            total += sum(float(w) ** 2 for p in range(pixels) for w in reader[:, c * pixels + p].flatten())
            sums.append(total + (float(scale[c]) ** 2 if scale is not None else 0.0))
        result.append(np.array(sums) / np.mean(sums))
    return result


def test_importances_are_sums_over_all_weights_of_a_unit():
    network = normed()
    with torch.no_grad():
        network.norm1.weight.uniform_(0.2, 1.5)
    run = a_run("group-norm", network)
    found = group_norm.importances(run.structure, run.weights(), {"norm1": network.norm1.weight.detach()})
    expected = plain_importances(network, {"conv1": 8, "conv2": 8, "fc1": 16})
    layers = {layer.name: layer for layer in run.structure.layers}
    for name, values in zip(("conv1", "conv2", "fc1"), expected, strict=True):
        assert found[layers[name].out_units].tolist() == pytest.approx(values.tolist(), rel=1e-6)


def groups_of_torch_pruning(network, example, units):
    """Torch-Pruning's groups of whole layers: the name of the layer that makes the units, all of which may go."""
    graph = tp.DependencyGraph().build_dependency(network, example_inputs=example)
    for name, width in units.items():
        module = network.get_submodule(name)
        remove = tp.prune_conv_out_channels if isinstance(module, nn.Conv2d) else tp.prune_linear_out_channels
        yield name, graph.get_pruning_group(module, remove, idxs=list(range(width)))


def hidden_units(run):
    """The units of every layer all of whose units may go, by its name."""
    layers = {layer.name: layer.out_units for layer in run.structure.layers}
    return {name: layers[name] for name in run.layers if bool(run.structure.removable[layers[name]].all())}


@pytest.mark.parametrize("make", [lenet, normed, residual])
def test_importances_are_those_of_torch_pruning(make):
    """Before a cut, and after one, where its network is smaller and ours has dead units."""
    network = make()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.2, 1.5)
    run = a_run("group-norm", network)
    scales = {n: s.detach() for n, s in group_norm._norm_scales(network, run.structure).items()}
    ours = group_norm.importances(run.structure, run.weights(), scales)
    units, example = hidden_units(run), run.data.train.x[:2]
    assert units
    importance = tp.importance.GroupMagnitudeImportance()
    for name, group in groups_of_torch_pruning(network, example, {n: len(u) for n, u in units.items()}):
        assert torch.allclose(ours[units[name]].float(), importance(group), rtol=1e-4), name

    dead = torch.zeros_like(run.structure.removable)
    smaller = copy.deepcopy(network)
    graph = tp.DependencyGraph().build_dependency(smaller, example_inputs=example)
    for name, mine in units.items():
        if dead[mine].any():
            continue  # of a sum whose other layers have been cut with it
        gone = [place for place in range(len(mine)) if place % 3 == 1]
        dead[mine[gone]] = True
        module = smaller.get_submodule(name)
        remove = tp.prune_conv_out_channels if isinstance(module, nn.Conv2d) else tp.prune_linear_out_channels
        graph.get_pruning_group(module, remove, idxs=gone).prune()
    live = {name: (value == 0) for name, value in to_weights(run.structure, dead.double()).items()}
    masked = {name: weight * live[name] for name, weight in run.weights().items()}
    ours = group_norm.importances(run.structure, masked, scales, dead)
    left = {name: int((~dead[mine]).sum()) for name, mine in units.items()}
    for name, group in groups_of_torch_pruning(smaller, example, left):
        mine = units[name]
        assert torch.allclose(ours[mine[~dead[mine]]].float(), importance(group), rtol=1e-4), name
        assert not ours[mine[dead[mine]]].any()


@pytest.mark.parametrize("make", [lenet, normed, residual])
def test_sparse_training_pulls_as_torch_pruning_does(make):
    """The gradient of the penalty is what its regulariser adds to the gradients."""
    network = make()
    run = a_run("group-norm", network)
    scales = group_norm._norm_scales(network, run.structure)
    importance = group_norm.importances(run.structure, run.weights(), {n: s.detach() for n, s in scales.items()})
    pulls = group_norm.pulls(run.structure, importance)
    of_weights = to_weights(run.structure, pulls)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    ignored = [m for n, m in network.named_modules() if n in run.layers and n not in hidden_units(run)]
    theirs = tp.pruner.GroupNormPruner(
        network,
        run.data.train.x[:2],
        importance=tp.importance.GroupMagnitudeImportance(),
        reg=1.0,
        ignored_layers=ignored,
    )
    theirs.regularize(network)
    for name, module in run.layers.items():
        expected = of_weights[name].float() * module.weight.detach()
        torch.testing.assert_close(module.weight.grad, expected, rtol=1e-4, atol=1e-6)
    for name, scale in scales.items():
        expected = pulls[run.structure.norms[name]].float() * scale.detach()
        torch.testing.assert_close(scale.grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [lenet, small_mlp, normed, residual])
@pytest.mark.parametrize("target", [0.8, 0.4, 0.15])
def test_the_macs_target_is_met_within_one_unit(make, target):
    network = make()
    run = a_run("group-norm", network)
    importance = group_norm.importances(run.structure, run.weights(), {})
    alive = group_norm.live_at(run.structure, importance, target)
    allowed = target * macs(run.structure)
    assert macs(run.structure, alive) <= allowed
    removed = (~alive).nonzero().flatten()
    last = removed[importance[removed].argmax()]
    alive[last] = True
    assert macs(run.structure, alive) > allowed
    alive[last] = False
    for layer in run.structure.layers:
        assert alive[layer.out_units].any()


def test_what_is_left_of_the_budget_is_given_back():
    """A dear channel goes last; a neuron that went before it comes back, one that is gone does not."""
    run = a_run("group-norm", lenet())
    layers = {layer.name: layer.out_units for layer in run.structure.layers}
    importance = torch.full((run.structure.unit_count,), 9.0, dtype=torch.float64)
    importance[layers["fc1"][0]], importance[layers["fc1"][1]], importance[layers["conv1"][0]] = 0.0, 1.0, 2.0
    alive = torch.ones_like(run.structure.removable)
    alive[[int(layers["fc1"][0]), int(layers["fc1"][1])]] = False
    target = (macs(run.structure, alive) - 1) / macs(run.structure)
    dead = torch.zeros_like(alive)
    dead[layers["fc1"][0]] = True
    found = group_norm.live_at(run.structure, importance, target, dead)
    assert found[layers["fc1"]][:2].tolist() == [False, True]
    assert int((~found).sum()) == 2
    assert not found[layers["conv1"][0]]


def test_units_that_are_gone_stay_gone_and_do_not_count():
    """Their norms' scales stay; neither those nor a target that is met already bring them back."""
    network = normed()
    run = a_run("group-norm", network)
    scales = {"norm1": network.norm1.weight.detach()}
    conv1 = next(layer.out_units for layer in run.structure.layers if layer.name == "conv1")
    dead = torch.zeros_like(run.structure.removable)
    dead[conv1[:5]] = True
    with torch.no_grad():
        network.conv1.weight[:5] = 0
        network.conv2.weight[:, :5] = 0
    importance = group_norm.importances(run.structure, run.weights(), scales, dead)
    assert (importance[conv1[:5]] == 0).all()
    assert float(importance[conv1[5:]].mean()) == pytest.approx(1)
    for target in (1.0, 0.9, 0.3):
        assert not group_norm.live_at(run.structure, importance, target, dead)[conv1[:5]].any()


@pytest.mark.parametrize("make", [normed, residual])
def test_cuts_only_add_to_each_other(monkeypatch, make):
    cuts, live_at = [], group_norm.live_at
    monkeypatch.setattr(group_norm, "live_at", lambda *given: cuts.append(live_at(*given)) or cuts[-1])
    run = a_run("group-norm", make(), prune_epochs=8, pruning_steps=6, target_macs=0.2)
    group_norm.prune(run)
    assert len(cuts) > 3
    for before, after in itertools.pairwise(cuts):
        assert not (after & ~before).any()


def test_no_layer_goes_whatever_the_target():
    run = a_run("group-norm", lenet())
    importance = group_norm.importances(run.structure, run.weights(), {})
    alive = group_norm.live_at(run.structure, importance, 1e-6)
    assert [int(alive[layer.out_units].sum()) for layer in run.structure.layers] == [1, 1, 1, 1, 10]
    dead = group_norm.to_weights(run.structure, (~alive).double())
    masks = {name: (dead[name] == 0).expand(w.shape) for name, w in run.weights().items()}
    assert torch.equal(live_units(run.structure, masks), alive)


@pytest.mark.parametrize(
    ("largest_cut", "least"), [(0.7, [2, 5, 36, 26, 10]), (0.5, [3, 8, 60, 42, 10]), (0.01, [6, 16, 119, 84, 10])]
)
def test_of_a_layer_goes_at_most_the_largest_cut(largest_cut, least):
    """Whatever the target, LeNet-5's 6-16-120-84 keep these many, and they are the most important ones."""
    run = a_run("group-norm", lenet())
    importance = group_norm.importances(run.structure, run.weights(), {})
    alive = group_norm.live_at(run.structure, importance, 1e-6, None, largest_cut)
    for layer, count in zip(run.structure.layers, least, strict=True):
        live = alive[layer.out_units]
        assert int(live.sum()) == count
        ranked = importance[layer.out_units].argsort(descending=True)
        assert live[ranked[:count]].all()


def test_what_goes_already_counts_towards_the_largest_cut():
    run = a_run("group-norm", lenet())
    fc1 = next(layer.out_units for layer in run.structure.layers if layer.name == "fc1")
    dead = torch.zeros_like(run.structure.removable)
    dead[fc1[:30]] = True
    importance = group_norm.importances(run.structure, run.weights(), {}, dead)
    alive = group_norm.live_at(run.structure, importance, 1e-6, dead, 0.5)
    assert int(alive[fc1].sum()) == 60
    assert not alive[fc1[:30]].any()


def test_sparse_training_pulls_the_least_important_most():
    run = a_run("group-norm", lenet())
    importance = group_norm.importances(run.structure, run.weights(), {})
    pulls = group_norm.pulls(run.structure, importance)
    for layer in run.structure.layers[:-1]:
        norm, pull = importance[layer.out_units].sqrt(), pulls[layer.out_units]
        share = (norm.max() - norm) / (norm.max() - norm.min())
        assert torch.allclose(pull, 16**share)
    assert (pulls[~run.structure.removable] == 0).all()


def test_siblings_are_the_units_of_a_residual_stream():
    structure = trace(residual(), torch.zeros(2, 1, 8, 8))
    family = group_norm.siblings(structure)
    layers = {layer.name: layer for layer in structure.layers}
    assert torch.equal(family[layers["stem"].out_units], family[layers["conv2"].out_units])
    assert set(family[layers["conv1"].out_units].tolist()).isdisjoint(family[layers["stem"].out_units].tolist())
