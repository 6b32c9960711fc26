"""Effective weights: folding is what BatchNorm does, normalisation makes weights of order one."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesprune.priors import prunable_weights


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
        self.both = nn.Conv2d(8, 8, 1)  # read by BatchNorm and by the sum: must not be folded
        self.bn3 = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = x + self.bn2(self.conv2(x))
        y = self.both(x)
        return self.head((y + self.bn3(y)).mean((2, 3)))


def trained(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.SyncBatchNorm):
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.3, 3.0, generator=generator)
            nn.init.normal_(module.weight, generator=generator)
            nn.init.normal_(module.bias, generator=generator)
    return model.eval()


def test_folding_reproduces_convolution_and_batchnorm() -> None:
    model = trained(Residual())
    weights = {w.name: w for w in prunable_weights(model, normalise_fan_in=False)}
    assert weights["conv1"].batchnorm is model.bn1
    assert weights["conv2"].batchnorm is model.bn2
    assert weights["both"].batchnorm is None
    assert weights["head"].batchnorm is None
    x = torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        expected = model.bn1(model.conv1(x))
        bias = model.bn1.bias - model.bn1.running_mean * weights["conv1"].scale().flatten()
        folded = F.conv2d(x, weights["conv1"].effective(), bias)
    torch.testing.assert_close(folded, expected, rtol=1e-4, atol=1e-5)


def test_rescaling_before_batchnorm_does_not_change_the_effective_weight() -> None:
    """The degeneracy that folding removes: BatchNorm undoes any rescaling."""
    model = trained(Residual())
    weight = prunable_weights(model)[0]
    before = weight.effective().detach().clone()
    with torch.no_grad():
        model.conv1.weight.mul_(0.01)
        model.bn1.running_var.mul_(0.01**2)
        model.bn1.eps *= 0.01**2
    torch.testing.assert_close(weight.effective().detach(), before)


def test_normalised_weights_are_of_order_one_in_every_layer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 512, 3), nn.Linear(4096, 10))
    for module in model:
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    for weight in prunable_weights(model):
        assert weight.effective().std().item() == pytest.approx(1.0, rel=0.05)
    plain = prunable_weights(model, normalise_fan_in=False)[2]
    assert torch.equal(plain.effective(), plain.weight)


def test_effective_weights_are_differentiable_in_the_weight_only() -> None:
    model = trained(Residual())
    weight = prunable_weights(model)[0]
    weight.effective().square().sum().backward()
    assert model.conv1.weight.grad is not None
    assert model.bn1.weight.grad is None


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))
        self.late = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.late(self.body(x)) if x.sum() > 0 else self.body(x)


def test_an_untraceable_network_is_said_and_folded_where_it_is_plain() -> None:
    model = Untraceable()
    with pytest.warns(UserWarning, match="Untraceable cannot be traced"):
        weights = prunable_weights(model)
    assert [w.name for w in weights] == ["body.0", "body.3"]
    assert weights[0].batchnorm is model.body[1]
    assert weights[1].batchnorm is None
    assert prunable_weights(model, fold_batchnorm=False)[0].batchnorm is None


def test_shared_layers_and_statistics_free_batchnorms_are_not_folded() -> None:
    conv = nn.Conv2d(3, 3, 1)
    shared = nn.Sequential(conv, nn.BatchNorm2d(3), conv, nn.BatchNorm2d(3))
    assert [w.batchnorm for w in prunable_weights(shared)] == [None]
    bare = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False))
    assert prunable_weights(bare)[0].batchnorm is None
    no_affine = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, affine=False))
    assert prunable_weights(no_affine)[0].scale().shape == (3, 1, 1, 1)


class Counting(nn.Module):
    """A forward with side effects, which tracing must not have."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("calls", torch.zeros(()))
        self.last: object = None

    def forward(self, x: Tensor) -> Tensor:
        self.mean = self.mean + x.mean()
        self.calls.add_(1)
        self.last = x
        return self.body(x)


def test_the_users_network_is_left_alone() -> None:
    model = Counting()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    weights = prunable_weights(model)
    assert weights[0].module is model.body[0]
    assert weights[0].batchnorm is model.body[1]
    assert model.last is None
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_tied_weights_are_listed_once_and_not_folded() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[2].weight = model[0].weight
    weights = prunable_weights(model)
    assert [w.name for w in weights] == ["0"]
    assert weights[0].batchnorm is None


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile's own imports
@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["DataParallel", "compile"])
def test_wrapped_networks_fold_like_their_inside(wrap: object) -> None:
    model = trained(Residual())
    weights = {w.name.split(".")[-1]: w for w in prunable_weights(wrap(model))}  # type: ignore[operator]
    assert weights["conv1"].batchnorm is model.bn1
    assert weights["both"].batchnorm is None


def test_other_batchnorms() -> None:
    sync = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)))
    assert prunable_weights(sync)[0].batchnorm is sync[1]
    over_tokens = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(6))  # inputs (n, 6, 8): another dimension is normalised
    assert prunable_weights(over_tokens)[0].batchnorm is None
    with pytest.raises(ValueError, match="lazy layer without weights"):
        prunable_weights(nn.Sequential(nn.LazyLinear(3)))
