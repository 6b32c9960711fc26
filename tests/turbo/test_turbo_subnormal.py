"""Weights that vanish become zero before they are slow."""

from dataclasses import replace

import pytest
import torch
from turbo_examples import QUICK, Recording, digits, small_mlp

from bayesprune.turbo import compress, network_prior, training
from bayesprune.turbo.subnormal import drop_tiny

SHRINKING = replace(QUICK, warmup_epochs=1, prune_epochs=80, finetune_epochs=0, unit_strength=1000.0)


def test_what_is_far_below_the_largest_is_dropped():
    values = torch.tensor([1.0, -1e-9, 1e-11, -1e-30, 0.0, float("nan")])
    drop_tiny([values[:5], nothing := torch.zeros(3), vanished := torch.tensor([1e-21, 1e-40])])
    assert values[:5].tolist() == [1.0, pytest.approx(-1e-9), 0.0, 0.0, 0.0]
    assert nothing.tolist() == [0.0] * 3
    assert vanished.tolist() == [0.0] * 2
    drop_tiny([values])
    assert values.isnan().tolist() == [False] * 5 + [True]


def smallest(state):
    """The smallest sizes, other than zero, among the weights and among the optimiser's first moments."""
    weights = [value for value in state["model"].values() if value.ndim > 1]
    names = ("exp_avg", "momentum_buffer")
    moments = [slot[name] for slot in state["optimiser"].values() for name in names if name in slot]
    return [min(float(value[value != 0].abs().min()) for value in found) for found in (weights, moments)]


class KeepsPruned(Recording):
    """The state after the last epoch of pruning."""

    def checkpoint(self, state, *, must=False):
        super().checkpoint(state, must=must)
        if self.rows and self.rows[-1]["phase"] == "prune" and self.saved["masks"] is None:
            self.pruned = self.saved


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_no_number_becomes_slow_while_weights_vanish(monkeypatch, optimiser):
    settings = replace(SHRINKING, optimiser=optimiser, learning_rate=6e-3 if optimiser == "adam" else 0.05)
    recording = KeepsPruned()
    compress(small_mlp(), digits(), settings=settings, recorder=recording)
    assert min(smallest(recording.pruned)) > 1e-30
    for module in (network_prior, training):
        monkeypatch.setattr(module, "drop_tiny", lambda tensors: None)
    recording = KeepsPruned()
    compress(small_mlp(), digits(), settings=settings, recorder=recording)
    assert min(smallest(recording.pruned)) < 1e-30
