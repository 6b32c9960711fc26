import copy

import pytest
import torch
from torch import nn

from bayesprune.surgery import ProofError, prove


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_figures():
    masked = nn.Linear(3, 2, bias=False)
    nn.init.ones_(masked.weight)
    other = copy.deepcopy(masked)
    nn.init.constant_(other.weight, 1.25)
    x = torch.tensor([[1.0, 1.0, 2.0], [0.0, 0.0, 1.0]])
    proof = prove(masked, other, [x, x[1:]], tolerance32=0.5, tolerance64=0.5)
    assert proof.as_dict() == {
        "max_abs_32": 1.0,
        "max_rel_32": 0.25,
        "max_abs_64": 1.0,
        "max_rel_64": 0.25,
        "examples": 3,
    }
    with pytest.raises(ProofError, match=r"differ by 0.25 .* in float32, above the tolerance 1e-05"):
        prove(masked, other, [x])
    with pytest.raises(ProofError, match=r"in float64, above the tolerance 0.1"):
        prove(masked, other, [x], tolerance32=1, tolerance64=0.1)


def test_networks_are_left_alone():
    masked = network().train()
    before = copy.deepcopy(masked.state_dict())
    prove(masked, masked, [torch.rand(5, 3)])
    assert all(module.training for module in masked.modules())
    assert all(torch.equal(before[key], value) for key, value in masked.state_dict().items())


def test_numbers_that_are_missing():
    masked, shrunk = network(), network()
    with torch.no_grad():
        shrunk[2].bias[0] = float("nan")
    with pytest.raises(ProofError, match="infinities or NaN"):
        prove(masked, shrunk, [torch.rand(5, 3)])
    # The other way round they are left out.
    with torch.no_grad():
        shrunk.load_state_dict(masked.state_dict())
        masked[2].bias[0] = float("inf")
    assert prove(masked, shrunk, [torch.rand(5, 3)]).max_abs_64 == 0


def test_what_cannot_be_compared():
    with pytest.raises(ValueError, match="at least one example"):
        prove(network(), network(), [])
    with pytest.raises(ProofError, match=r"shapes \[\(5, 3\)\] instead of \[\(5, 2\)\]"):
        prove(nn.Linear(3, 2), nn.Linear(3, 3), [torch.rand(5, 3)])


def test_several_inputs_and_results():
    class Two(nn.Module):
        def forward(self, x, y):
            return {"sum": x + y, "both": (x, y)}

    assert prove(Two(), Two(), [(torch.rand(5, 3), torch.rand(5, 3))]).examples == 5
