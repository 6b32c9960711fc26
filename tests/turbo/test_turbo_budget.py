"""How budgets steer the strengths, and which network is chosen in the end."""

import itertools
import math
import random
import re
import statistics

import pytest
import torch
from turbo_examples import digits, small_mlp

from bayesprune import models
from bayesprune.data import DataSet, Split
from bayesprune.likelihoods import Classification, GaussianRegression, LearnedNoise
from bayesprune.turbo import Compressor, Settings, compress
from bayesprune.turbo.accuracy_budget import SLACK, AccuracyBudget, Front
from bayesprune.turbo.compressor import Size
from bayesprune.turbo.loop import Loop, Silent
from bayesprune.turbo.parallel import World


def sized(nonzero, macs):
    return Size(round(nonzero * 10000), 10000, 10000, round(macs * 10000), 10000, [1], [])


def compressor(epochs=40, examples=1000, **budget):
    settings = Settings(**budget)
    return Compressor(small_mlp(), torch.zeros(2, 1, 8, 8), examples=examples, epochs=epochs, settings=settings)


def loop_with(unpruned=0.9, **settings):
    loop = Loop(small_mlp(), digits(), Classification(), Settings(**settings), Silent(), World())
    loop.budget.unpruned = {"accuracy": unpruned, "nll": 0.0}
    loop.phase = 1
    return loop


def test_the_unit_prior_waits_while_units_are_dying():
    c = compressor(max_accuracy_drop=0.5)
    before = c.strengths[1]
    c.adjust(sized(0.9, 0.8), 0.0, 1.0)  # a fifth of the MACs went in one epoch
    assert c.strengths[1] == before
    c.adjust(sized(0.9, 0.79), 0.0, 1.0)
    assert c.strengths[1] > before


def test_units_grow_first_then_weights():
    c = compressor(epochs=10, max_accuracy_drop=0.5)
    weight, unit = [], []
    for _ in range(10):
        weight.append(c.strengths[0])
        unit.append(c.strengths[1])
        c.adjust(sized(1.0, 1.0), 0.0, 1.0)
    assert len(set(weight[:5])) == 1
    assert weight[9] > weight[6] > weight[5]
    early, late = unit[2] / unit[1], unit[9] / unit[8]
    assert late == pytest.approx(math.sqrt(early))


def test_lost_accuracy_takes_two_steps_back():
    c = compressor(max_accuracy_drop=0.5)
    start = c.strengths[1]
    c.adjust(sized(1.0, 1.0), 0.0, 1.0)
    c.adjust(sized(1.0, 1.0), 0.0, 1.0)
    c.adjust(sized(1.0, 1.0), 1.1, 1.0)
    assert c.strengths[1] == pytest.approx(start)


def test_a_target_that_is_met_rests_and_pulls_again_when_it_is_missed():
    c = compressor(target_macs=0.5)
    c.adjust(sized(1.0, 0.45), None, None)
    assert c.strengths[1] == 0
    c.adjust(sized(1.0, 0.55), None, None)
    assert c.strengths[1] > 0


def strengths_over(c, epochs, size=None):
    """Strengths per example, (epochs, 2), while the size stays or is what size(epoch) says."""
    found = []
    for epoch in range(epochs):
        found.append([strength / c.prior.examples for strength in c.strengths])
        c.adjust(size(epoch) if size else sized(1.0, 1.0), None, None)
    return torch.tensor(found, dtype=torch.float64)


def test_a_strength_that_changes_nothing_grows_to_what_more_examples_would_have():
    few, enough = (
        strengths_over(compressor(100, examples, target_macs=0.1, target_nonzero=0.01), 100)
        for examples in (600, 60_000)
    )
    assert (few[70] * 600 > 0.8 * enough[70] * 60_000).all()
    # With enough examples growth is even: a factor of 10 for units in 45 % of the epochs, then of 125 for weights.
    assert enough[45, 1] / enough[0, 1] == pytest.approx(10.0)
    assert enough[90, 0] / enough[45, 0] == pytest.approx(125.0)
    assert len(enough[:45, 0].unique()) == 1


def test_a_strength_that_shrinks_the_network_grows_slowly_with_few_examples_too():
    def shrinking(epoch):
        return sized(0.98**epoch, 0.98**epoch)

    few, enough = (
        strengths_over(compressor(100, examples, target_macs=0.01), 100, shrinking) for examples in (600, 60_000)
    )
    assert torch.allclose(few, enough)


def test_growth_is_slow_again_after_too_much_was_lost():
    c = compressor(100, 600, max_accuracy_drop=0.5)
    units = [c.strengths[1]]

    def go(lost):
        c.adjust(sized(1.0, 1.0), lost, 1.0)
        units.append(c.strengths[1])

    for _ in range(30):
        go(0.0)
    slow, fast = units[1] / units[0], units[-1] / units[-2]
    assert fast > 1.1 * slow
    go(2.0)
    assert units[-1] == pytest.approx(units[-2] / fast**2)
    go(0.0)
    assert units[-1] == pytest.approx(units[-2] * slow)


def test_a_restored_compressor_grows_on_at_the_same_pace():
    def fresh():
        return compressor(100, 600, target_macs=0.1)

    whole, first, second, older = fresh(), fresh(), fresh(), fresh()
    wanted = strengths_over(whole, 60)
    strengths_over(first, 30)
    second.load(first.state())
    assert torch.equal(strengths_over(second, 30), wanted[30:])
    older.load({k: v for k, v in first.state().items() if k not in ("judged", "stuck")})  # of an earlier version
    assert older.strengths == first.strengths


def few_digits():
    data = digits()
    x, y = data.train.x[:660], data.train.y[:660]
    return DataSet.from_tensors(x, y, test=(data.test.x, data.test.y), validation=60, normalise=False)


def few_points():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1100, 20, generator=generator)
    y = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * torch.randn(1100, generator=generator)
    return DataSet.from_tensors(x, y[:, None], test=200, validation=100)


FEW = {
    "digits": (few_digits, (1, 8, 8), 10, Classification, "accuracy", 0.85),
    "regression": (few_points, (20,), 1, lambda: GaussianRegression(LearnedNoise()), "r2", 0.6),
}


@pytest.mark.parametrize("budget", [{"target_macs": 0.2}, {"target_nonzero": 0.05}], ids=["macs", "nonzero"])
@pytest.mark.parametrize("name", FEW)
def test_targets_are_met_with_few_examples(name, budget):
    make, shape, outputs, likelihood, figure, least = FEW[name]
    network = models.create("mlp", shape, outputs, generator=torch.Generator().manual_seed(0))
    settings = Settings(**budget, warmup_epochs=15, prune_epochs=60, finetune_epochs=15)
    summary = compress(network, make(), settings=settings, likelihood=likelihood()).summary
    assert summary["status"] == "finished"
    assert 1 - summary["macs_removed"] <= budget.get("target_macs", 1)
    assert summary["nonzero_fraction"] <= budget.get("target_nonzero", 1)
    assert summary[figure] > least


def test_a_network_that_only_guesses_is_taken_back_with_half_the_strengths():
    loop = loop_with(target_macs=0.5)
    loop.good = {name: value + 1 for name, value in loop.model.state_dict().items()}
    x = loop.validation.x
    with torch.no_grad():
        wrong = loop.model(x).argmin(1)
    loop.validation = Split(x, wrong)
    before = loop.compressor.strengths
    row = loop._after_epoch("prune")
    assert row["validation_accuracy"] < 0.1
    assert all(torch.equal(value, loop.good[name]) for name, value in loop.model.state_dict().items())
    assert loop.compressor.strengths == tuple(one / 2 for one in before)
    assert loop.notes == ["prune epoch 1: no better than guessing; strengths halved"]


def test_a_loop_of_ones_own_is_told_of_a_target_that_was_missed():
    c = compressor(target_macs=0.001, target_nonzero=0.002)
    size = c.size(c.masks())
    words = (
        f"budget not met: MACs {size.macs_fraction:.3f} of the dense network's instead of 0.001; "
        f"nonzero {size.nonzero_fraction:.4f} instead of 0.002; try more epochs"
    )
    with pytest.warns(UserWarning, match=re.escape(words)):
        c.finish()


def test_hold_changes_nothing_but_the_epoch():
    c = compressor(max_accuracy_drop=0.5)
    before = c.strengths
    c.adjust(sized(1.0, 1.0), 9.0, 1.0, hold=True)
    assert c.strengths == before
    assert c.epoch == 1


def budget_of(drop, examples=144, epochs=40, unpruned=0.9):
    budget = AccuracyBudget(drop, examples, epochs)
    budget.unpruned = {"accuracy": unpruned, "nll": 0.0}
    return budget


def test_what_is_tolerated_counts_the_cost_of_the_learning_rate():
    count = 144
    budget = budget_of(2.0, count)
    one = 100 / count
    smoothed = (0.9 * count + 1) / (count + 2)
    binomial = 100 * math.sqrt(smoothed * (1 - smoothed) / count)
    allowed = one * math.ceil(2.0 / one)
    assert budget.tolerated(1.0) == pytest.approx(allowed + SLACK + binomial)
    budget.losses = [10.0, 30.0, 5.0, 20.0] + [70.0] * 5  # the last ones are beyond the epochs that look
    usual, noise = 15.0, statistics.pstdev([10, 30, 5, 20])
    assert budget.tolerated(1.0) == pytest.approx(allowed + usual + SLACK + max(binomial, noise))
    assert budget.tolerated(0.25) == pytest.approx(allowed + usual / 4 + SLACK + max(binomial, noise))
    assert AccuracyBudget(None, count, 40).tolerated(1.0) is None


def test_the_first_tenth_of_the_epochs_looks():
    budget = budget_of(1.0, epochs=40)
    looked = []
    for _ in range(6):
        budget.losses.append(0.0)
        looked.append(budget.looking)
    assert looked == [True] * 4 + [False] * 2
    assert not AccuracyBudget(None, 100, 40).looking


def test_a_single_bad_epoch_is_not_a_loss():
    budget = budget_of(1.0)
    budget.losses = [1.0, 0.0, 40.0]
    assert budget.recently_lost == 1.0
    budget.losses.append(40.0)
    assert budget.recently_lost == 40.0


def test_points_are_of_accuracy_or_of_r2():
    budget = budget_of(1.0)
    assert budget.lost({"accuracy": 0.85, "nll": 1.0}) == pytest.approx(5.0)
    regression = AccuracyBudget(0.3, 100, 10)
    regression.unpruned = {"rmse": 1.0, "r2": 0.9}
    assert regression.lost({"rmse": 2.0, "r2": 0.8}) == pytest.approx(10.0)
    assert regression.allowed == 0.3
    assert budget_of(0.5, examples=144).allowed == pytest.approx(100 / 144)


@pytest.mark.parametrize("seed", range(5))
def test_the_front_holds_no_network_that_is_larger_and_worse_than_another(seed):
    front = Front()
    draw = random.Random(seed)
    seen = []
    for number in range(60):
        cost, lost = 2 * draw.random() + 1e-3, 30 * draw.random()
        seen.append((cost, lost))
        front.consider(cost, lost, lambda number=number: {"number": number})
    kept = sorted((one["cost"], one["lost"]) for one in front.kept.values())
    assert all(a[1] > b[1] for a, b in itertools.pairwise(kept))
    assert all(seen[one["number"]] == (one["cost"], one["lost"]) for one in front.kept.values())
    best = [one for one in seen if not any(o[0] <= one[0] and o[1] <= one[1] and o != one for o in seen)]
    for cost, lost in best:  # each of the best has a neighbour of about its cost that lost no more, or is kept itself
        assert any(k[0] <= 1.3 * cost and k[1] <= lost + 1e-6 for k in kept)


def falling_back(loop, front, chosen, after):
    snapshot = {"model": loop.model.state_dict(), "masks": loop.compressor.masks()}
    loop.front.kept = {str(i): {"cost": c, "lost": lost, **snapshot} for i, (c, lost) in enumerate(front)}
    loop.chosen = {"cost": chosen[0], "lost": chosen[1]}
    loop.best = {"lost": after, "model": loop.model.state_dict()}
    loop.phase = 2
    return loop._falls_back()


def test_the_next_network_is_the_smallest_that_fine_tuning_would_bring_back():
    loop = loop_with(max_accuracy_drop=1.0)
    front = [(0.1, 4.0), (0.2, 3.0), (0.4, 2.0), (0.8, 1.0), (1.6, 0.2)]
    # Fine-tuning brought 1.2 points back: a network that lost up to 1.2 plus the budget is promising.
    assert falling_back(loop, front, chosen=(0.1, 4.0), after=2.8)
    assert loop.chosen["cost"] == 0.4
    assert loop.recovery == pytest.approx(1.2)
    assert loop.epoch == 0
    assert "2.80 points lost after fine-tuning, 1 allowed" in loop.notes[-1]


def test_where_none_is_promising_the_one_that_lost_least_is_next():
    loop = loop_with(max_accuracy_drop=1.0)
    assert falling_back(loop, [(0.1, 9.0), (0.4, 7.0), (0.8, 6.0)], chosen=(0.1, 9.0), after=8.5)
    assert loop.chosen["cost"] == 0.8


def test_within_the_budget_or_without_a_larger_network_it_ends():
    loop = loop_with(max_accuracy_drop=1.0)
    assert not falling_back(loop, [(0.1, 4.0), (0.8, 1.0)], chosen=(0.1, 4.0), after=0.5)
    assert not falling_back(loop, [(0.1, 4.0)], chosen=(0.1, 4.0), after=3.0)


def test_fine_tuning_ends_with_its_best_epoch():
    loop = loop_with(max_accuracy_drop=1.0)
    loop.masks = loop.compressor.masks()
    for lost, value in ((5.0, 1.0), (2.0, 2.0), (4.0, 3.0)):
        with torch.no_grad():
            next(loop.model.parameters()).fill_(value)
        loop._keep_best(lost)
    assert loop.best["lost"] == pytest.approx(2.0)
    assert bool((next(iter(loop.best["model"].values())) == 2.0).all())
