"""Rounded widths are taken only where they measure faster, and compute the same."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bayesprune.latency import rounding, shrink_fastest
from bayesprune.surgery import masked_network, prove


def network_and_masks():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3)).eval()
    mask = torch.zeros(40, 6, dtype=torch.bool)
    mask[:13] = True
    return network, {"0": mask, "2": mask[:, :1].T.expand(3, 40).clone()}


def measured(ratios):
    """A measurement that found these ratios, by name of the network."""

    def measure(networks, *_, **__):
        assert list(networks) == ["1", "8", "16"]
        rows = [
            SimpleNamespace(ratio=r, faster=r > 1.05, network=SimpleNamespace(network=n)) for n, r in ratios.items()
        ]
        return SimpleNamespace(comparisons=rows)

    return measure


@pytest.mark.parametrize(
    ("ratios", "multiple", "width"),
    [({"8": 1.2, "16": 1.5}, 16, 16), ({"8": 1.3, "16": 1.2}, 8, 16), ({"8": 1.01, "16": 0.8}, 1, 13)],
)
def test_the_fastest_is_taken_and_computes_the_same(monkeypatch, ratios, multiple, width):
    monkeypatch.setattr(rounding, "measure", measured(ratios))
    network, masks = network_and_masks()
    smaller, chosen = shrink_fastest(network, masks, torch.zeros(2, 6))
    assert chosen == multiple
    assert smaller.get_submodule("0").out_features == width
    prove(masked_network(network, masks), smaller, [torch.randn(32, 6)])


def test_a_real_measurement_ends_with_one_of_them():
    network, masks = network_and_masks()
    smaller, chosen = shrink_fastest(network, masks, torch.zeros(2, 6), batch=4, seconds=0.02)
    assert chosen in (1, 8, 16)
    prove(masked_network(network, masks), smaller, [torch.randn(32, 6)])
