"""On a GPU: the same figures as on the CPU, and fine-tuning with a captured step."""

import copy

import pytest
import torch
from torch import nn

from bayesprune.data import DataSet
from bayesprune.robustness import Bounds, HardenSettings, MeasureSettings, harden, live_weights, measure

pytestmark = pytest.mark.gpu


def blobs(device):
    """Noisy copies of ten patterns."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(256, (10, 1, 8, 8), generator=generator).float()
    y = torch.arange(3000) % 10
    x = (patterns[y] + 40 * torch.randn((3000, 1, 8, 8), generator=generator)).clamp(0, 255).to(torch.uint8)
    return DataSet.from_tensors(x, y, test=500, validation=0.1, device=device)


def test_a_gpu_measures_and_hardens_as_the_cpu_does():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )  # fmt: skip
    with torch.no_grad():
        network[4].weight[torch.rand(10, 144) < 0.5] = 0
    found, histories = {}, {}
    for device in ("cpu", "cuda"):
        loaded = blobs(device)
        bounds, mine = Bounds.of(loaded), copy.deepcopy(network).to(device).eval()
        result = harden(
            mine, loaded.train, bounds, HardenSettings(epochs=3, batch_size=64), validation=loaded.validation
        )
        for name, mask in live_weights(mine).items():
            assert bool((result.network.get_submodule(name).weight[~mask] == 0).all())
        found[device] = measure(mine, loaded.test, bounds, MeasureSettings())
        histories[device] = result.history
        assert result.history[-1]["validation_accuracy"] > 0.9
    for kind in ("fgsm", "pgd", "noise"):
        for one, other in zip(found["cpu"][kind], found["cuda"][kind], strict=True):
            assert other["accuracy"] == pytest.approx(one["accuracy"], abs=0.01)
            assert other["nll"] == pytest.approx(one["nll"], rel=0.01)
    for one, other in zip(histories["cpu"], histories["cuda"], strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=0.05)
