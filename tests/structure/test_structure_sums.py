import time

import pytest
import torch
from structure_networks import NETWORKS, random_masks, randomise, weight_shapes

from bayesprune.models import create
from bayesprune.structure import (
    close,
    live_units,
    macs,
    to_weights,
    trace,
    unit_costs,
    unit_sizes,
    unit_sums,
    weights,
    widths,
)

IMAGES = torch.zeros(1, 3, 8, 8, dtype=torch.float64)


@pytest.fixture(params=NETWORKS)
def structure(request):
    model = randomise(NETWORKS[request.param][0]())
    if request.param == "padded":
        with pytest.warns(UserWarning, match="has none"):
            return trace(model, IMAGES)
    return trace(model, IMAGES)


def linear_of(structure):
    return (*structure.layers, *structure.transposed)


def positions_of(structure, layer):
    """Every weight: its index, the unit it makes and the unit it reads."""
    if layer in structure.transposed:
        assert layer.groups == 1
        shape = weight_shapes(structure)[layer.name]
        for index in torch.cartesian_prod(*[torch.arange(size) for size in shape]).tolist():
            yield tuple(index), int(layer.out_units[index[1]]), int(layer.in_units[0, index[0]])
        return
    per_group = layer.shape[0] // layer.groups
    for index in torch.cartesian_prod(*[torch.arange(size) for size in layer.shape]).tolist():
        made = int(layer.out_units[index[0]])
        yield tuple(index), made, int(layer.in_units[index[0] // per_group, index[1]])


def slow_live_units(structure, masks):
    """The definition, with loops over weights."""
    edges, filters, needed = set(), set(), set()
    for layer in linear_of(structure):
        for index, maker, reader in positions_of(structure, layer):
            live = bool(masks[layer.name][index])
            if layer.per_channel:
                assert maker == reader
                if layer.gates[index[0] // (layer.shape[0] // layer.groups)]:
                    needed.add((layer.name, maker))
                if live:
                    filters.add((layer.name, maker))
            elif live:
                edges.add((reader, maker))
    units = range(structure.unit_count)
    stays = {unit for unit in units if not structure.removable[unit]}
    given = {unit for unit in units if structure.given[unit]}
    blocked = {unit for _, unit in needed - filters} - stays
    forward = reachable(stays | given - blocked, edges, blocked)
    backward = reachable(stays, {(made, read) for read, made in edges}, blocked)
    return torch.tensor([unit in forward and unit in backward for unit in units])


def reachable(start, edges, blocked):
    found = set(start)
    while new := {end for begin, end in edges if begin in found} - found - blocked:
        found |= new
    return found


@pytest.mark.parametrize("density", [0.03, 0.3])
def test_closing_agrees_with_loops(structure, density):
    masks = random_masks(structure, 1, density)
    alive = live_units(structure, masks)
    assert torch.equal(alive, slow_live_units(structure, masks))
    closed = close(structure, masks)
    assert closed.keys() == masks.keys()
    for layer in linear_of(structure):
        assert not bool((closed[layer.name] & ~masks[layer.name]).any())
        for index, maker, reader in positions_of(structure, layer):
            kept = bool(masks[layer.name][index]) and bool(alive[maker]) and bool(alive[reader])
            assert bool(closed[layer.name][index]) == kept
    again = close(structure, closed)
    assert all(torch.equal(again[name], mask) for name, mask in closed.items())
    assert torch.equal(live_units(structure, closed), alive)


def test_sums_agree_with_loops(structure):
    generator = torch.Generator().manual_seed(0)
    values = {
        layer.name: torch.rand(layer.shape, generator=generator, dtype=torch.float64) for layer in structure.layers
    }
    sums, sizes, costs = torch.zeros(3, structure.unit_count, dtype=torch.float64)
    alive = ~structure.removable | (torch.rand(structure.unit_count, generator=generator) < 0.6)
    left_macs = left_weights = 0
    for layer in linear_of(structure):
        for index, maker, reader in positions_of(structure, layer):
            for unit in [maker] if layer.per_channel else [maker, reader]:
                if layer.name in values:
                    sums[unit] += values[layer.name][index]
                    sizes[unit] += 1
                if structure.removable[unit]:
                    costs[unit] += 0.3 * layer.positions / macs(structure) + 0.7 / weights(structure)
            if alive[maker] and alive[reader]:
                left_macs += layer.positions
                left_weights += 1
    torch.testing.assert_close(unit_sums(structure, values), sums)
    torch.testing.assert_close(unit_sizes(structure), sizes)
    torch.testing.assert_close(unit_costs(structure, 0.3), costs)
    assert macs(structure, alive) == left_macs
    assert weights(structure, alive) == left_weights
    everything = torch.ones_like(alive)
    assert (macs(structure), weights(structure)) == (macs(structure, everything), weights(structure, everything))
    hidden = [layer for layer in structure.layers if layer.name != "out"]
    assert widths(structure, alive) == [int(alive[layer.out_units].sum()) for layer in hidden]


def test_to_weights_is_the_adjoint_of_sums(structure):
    generator = torch.Generator().manual_seed(0)
    values = {
        layer.name: torch.randn(layer.shape, generator=generator, dtype=torch.float64) for layer in structure.layers
    }
    per_unit = torch.randn(structure.unit_count, generator=generator, dtype=torch.float64)
    spread = to_weights(structure, per_unit)
    inner = sum((spread[name] * value).sum() for name, value in values.items())
    torch.testing.assert_close(inner, unit_sums(structure, values) @ per_unit)


def test_sums_have_gradients_and_take_some_layers():
    structure = trace(randomise(NETWORKS["chain"][0]()), IMAGES)
    layer = structure.layers[1]
    value = torch.rand(layer.shape, requires_grad=True)
    unit_sums(structure, {layer.name: value}).sum().backward()
    torch.testing.assert_close(value.grad, torch.full(layer.shape, 2.0))
    assert float(unit_sums(structure, {}).sum()) == 0
    assert bool(live_units(structure, {}).all())


def test_wrong_values_are_refused():
    structure = trace(randomise(NETWORKS["chain"][0]()), IMAGES)
    with pytest.raises(ValueError, match=r"masks has a layer 'x'"):
        close(structure, {"x": torch.ones(1)})
    with pytest.raises(ValueError, match=r"must have the shape of the weight, \(4, 6\), got \(6, 4\)"):
        unit_sums(structure, {"out": torch.ones(6, 4)})
    upsampled = trace(randomise(NETWORKS["upsampled"][0]()), IMAGES)
    with pytest.raises(ValueError, match=r"must have the shape of the weight, \(5, 4, 2, 2\), got \(4, 5, 2, 2\)"):
        close(upsampled, {"up": torch.ones(4, 5, 2, 2)})
    with pytest.raises(ValueError, match=r"values has a layer 'up'"):
        unit_sums(upsampled, {"up": torch.ones(5, 4, 2, 2)})
    with pytest.raises(ValueError, match=r"one entry per unit"):
        to_weights(structure, torch.ones(3))
    with pytest.raises(ValueError, match=r"one entry per unit"):
        macs(structure, torch.ones(3))
    with pytest.raises(ValueError, match=r"mix must be in \[0, 1\], got 2"):
        unit_costs(structure, 2)


def test_moving_keeps_everything():
    structure = trace(randomise(NETWORKS["chunked"][0]()), IMAGES)
    moved = structure.to("meta")
    assert moved.device.type == "meta"
    assert all(layer.out_units.is_meta and layer.in_units.is_meta and layer.gates.is_meta for layer in moved.layers)
    assert all(piece.is_meta for resize in moved.resizes for piece in resize.pieces)
    assert unit_sizes(moved).shape == (structure.unit_count,)
    moved = trace(randomise(NETWORKS["upsampled"][0]()), IMAGES).to("meta")
    assert len(moved.slots) == 3 + 2 + 3
    assert all(slot.units.is_meta for slot in moved.slots)
    assert all(layer.out_units.is_meta for layer in moved.transposed)


@pytest.mark.gpu
def test_on_the_gpu():
    model = create("resnet20", (3, 32, 32), generator=torch.Generator().manual_seed(0)).cuda()
    structure = trace(model, torch.zeros(1, 3, 32, 32))
    assert structure.device.type == "cuda"
    host = structure.to("cpu")
    masks = random_masks(host, 0, 0.02)
    there = close(structure, {name: mask.cuda() for name, mask in masks.items()})
    assert all(torch.equal(there[name].cpu(), mask) for name, mask in close(host, masks).items())
    torch.testing.assert_close(unit_costs(structure, 0.5).cpu(), unit_costs(host, 0.5))
    values = {name: mask.double() for name, mask in masks.items()}
    sums = unit_sums(structure, {name: value.cuda() for name, value in values.items()})
    torch.testing.assert_close(sums.cpu(), unit_sums(host, values))
    spread = to_weights(structure, sums)
    assert all(torch.equal(spread[name].cpu(), value) for name, value in to_weights(host, sums.cpu()).items())


def test_closing_vgg11_is_fast():
    structure = trace(
        create("vgg11", (3, 32, 32), 100, generator=torch.Generator().manual_seed(0)),
        IMAGES.new_zeros(1, 3, 32, 32).float(),
    )
    masks = random_masks(structure, 0, 0.02)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        close(structure, masks)
        times.append(time.perf_counter() - start)
    # 21 ms on one quiet core; the bound leaves room for a busy machine and still catches a loop over units.
    assert min(times) < 0.2
