"""Training steps as a CUDA graph, against the same steps without one."""

import copy

import pytest
import torch

from bayesprune import Compressor, Settings, models
from bayesprune.likelihoods import Classification
from bayesprune.turbo.training import TrainStep, make_optimiser

RATES = (0.02, 0.02, 0.01, 0.004, 0.004, 0.02)  # of six epochs


@pytest.mark.gpu
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_one_graph_serves_all_learning_rates(optimiser, monkeypatch):
    """Weights after epochs at several rates are those of plain steps, and one capture was enough."""
    captured = []
    original = TrainStep._capture
    monkeypatch.setattr(TrainStep, "_capture", lambda self, x, y: (captured.append(1), original(self, x, y))[1])
    settings = Settings(optimiser=optimiser, learning_rate=RATES[0], refresh_every=5)
    generator = torch.Generator().manual_seed(0)
    first = models.create("lenet5", (1, 28, 28), generator=generator)
    x, y = torch.randn(6, 32, 1, 28, 28, generator=generator).cuda(), torch.arange(32).cuda() % 10

    def trained(graph: bool) -> list[torch.Tensor]:
        network = copy.deepcopy(first).cuda()
        compressor = Compressor(network, x[0, :2], examples=1000, epochs=len(RATES), settings=settings)
        step = TrainStep(
            network,
            Classification(),
            make_optimiser(network.parameters(), settings),
            prior=compressor.prior,
            decoupled=settings.decoupled,
            graph=graph,
        )
        for rate in RATES:
            step.set_learning_rate(rate)
            for batch in x:
                step(batch, y)
                compressor.count_step()
        return [p.detach() for p in network.parameters()]

    for one, other in zip(trained(True), trained(False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert captured == [1]
