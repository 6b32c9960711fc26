"""torch.fx reads a network in one thread; the others run theirs."""

import threading

import pytest
import torch
from torch import fx, nn

from bayesprune import models
from bayesprune.structure import trace, traced_module


class Waiting(nn.Module):
    """While it is traced another thread runs its network."""

    def __init__(self, other):
        super().__init__()
        self.layer, self.other = nn.Linear(3, 3), [other]

    def forward(self, x):
        thread = threading.Thread(target=self.other[0])
        thread.start()
        thread.join()
        return self.layer(x)


def running(network, x, found):
    def run():
        try:
            found.append(network(x))
        except Exception as error:
            found.append(error)

    return run


@pytest.mark.parametrize("trace_it", [traced_module, lambda network: trace(network, torch.zeros(2, 3))])
def test_other_threads_run_while_one_traces(trace_it):
    network, x, found = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.randn(2, 3), []
    trace_it(Waiting(running(network, x, found)).eval())
    assert len(found) >= 1
    for one in found:
        torch.testing.assert_close(one, network(x))


def test_a_trace_is_that_of_torch():
    network = models.create("resnet20", (3, 32, 32), 10, generator=torch.Generator().manual_seed(0))
    assert traced_module(network).code == fx.symbolic_trace(network).code
