"""The front against its definition, choosing from it, grids."""

import random

import pytest

from bayesprune import frontier
from bayesprune.runs import RunError
from bayesprune.turbo import Settings, SettingsError


def dominates(one, other):
    no_worse = one[0] >= other[0] and one[1] <= other[1] and one[2] <= other[2]
    return no_worse and one != other


@pytest.mark.parametrize("count", [0, 1, 2, 5, 40, 200])
def test_the_front_is_what_its_definition_says(count):
    generator = random.Random(count)
    # Few values, so that many are equal in one, two or all three.
    points = [tuple(generator.randint(0, 5) for _ in range(3)) for _ in range(count)]
    expected = [i for i, one in enumerate(points) if not any(dominates(other, one) for other in points)]
    assert frontier.pareto(points) == expected


def record(accuracy, nonzero, removed, status="finished", unpruned=0.9):
    figures = {"nonzero_fraction": nonzero, "macs": round(1000 * (1 - removed)), "macs_removed": removed}
    shared = {"status": status, "validation": {"accuracy": accuracy}, "validation_unpruned": {"accuracy": unpruned}}
    return shared | (figures if status == "finished" else {})


RECORDS = [
    record(0.91, 0.50, 0.1),
    record(0.905, 0.10, 0.5),
    record(0.904, 0.20, 0.4),  # beaten by the one before
    record(0.89, 0.05, 0.8),
    record(0.95, 0, 0, "diverged: the loss became infinite"),
]


def test_only_finished_members_are_on_the_front():
    assert frontier.front(RECORDS) == [0, 1, 3]
    assert frontier.best_accuracy(RECORDS) == 0.91
    assert frontier.best_accuracy([*RECORDS, record(0.8, 1, 0, unpruned=0.92)]) == 0.92


@pytest.mark.parametrize(("max_drop", "place"), [(0.0, 0), (0.49, 0), (0.5, 1), (1.9, 1), (2.0, 3), (50.0, 3)])
def test_the_smallest_within_the_drop_is_picked(max_drop, place):
    assert frontier.pick(RECORDS, max_drop) == place


def test_picking_says_what_is_wrong():
    with pytest.raises(RunError, match=r"within 0.1 points .* 93.00%; the closest has lost 2.00"):
        frontier.pick([*RECORDS, record(0.8, 1, 0, unpruned=0.93)], 0.1)
    with pytest.raises(RunError, match="at least 0 points, got -1"):
        frontier.pick(RECORDS, -1)
    with pytest.raises(RunError, match="no member of this frontier has a result"):
        frontier.pick([], 1)
    with pytest.raises(RunError, match="no member of this frontier is finished"):
        frontier.pick(RECORDS[-1:], 1)


def test_a_grid_is_every_combination():
    grid = {"unit_strength": [1, 2], "seed": [0, 1, 2], "weight_ramp": [0.1, 0.5], "spike_rate": "1e-4"}
    settings = frontier.expand(grid)
    assert [(one.unit_strength, one.seed) for one in settings] == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert {(one.weight_ramp, one.spike_rate) for one in settings} == {((0.1, 0.5), 1e-4)}
    ramps = frontier.expand({"weight_ramp": [[0.1, 0.5], [0.2, 0.6]]})
    assert [one.weight_ramp for one in ramps] == [(0.1, 0.5), (0.2, 0.6)]
    assert frontier.expand({}) == [Settings()]
    with pytest.raises(SettingsError, match="did you mean"):
        frontier.expand({"unit_strenght": [1]})
    with pytest.raises(SettingsError, match="seed must have at least one value"):
        frontier.expand({"seed": []})
    with pytest.raises(SettingsError, match="at most 10000 members, got 20000"):
        frontier.expand({"seed": list(range(20000))})


def test_the_default_grid_can_be_stacked():
    settings = frontier.expand(frontier.default_grid(54_000))
    assert len(settings) == 48
    assert {one.unit_strength for one in settings} == {500, 1500, 3500, 6000}
    assert {one.weight_strength for one in settings} == {0.5, 3, 8}
    frontier.check_settings(settings)
    assert {one.weight_start for one in settings} == {Settings().weight_start}
    small = frontier.expand(frontier.default_grid(5400))
    assert max(one.unit_strength for one in small) == 600
    assert all(one.weight_start < one.weight_strength for one in small)  # or it would hide the weight strengths
