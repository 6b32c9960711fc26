"""One training step with the prior in it, eager or as one CUDA graph, and evaluation."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from bayesprune.data import Batches, Split
from bayesprune.likelihoods import Likelihood
from bayesprune.turbo.channels import lies_channels_last
from bayesprune.turbo.network_prior import NetworkPrior
from bayesprune.turbo.parallel import World
from bayesprune.turbo.plain_settings import PlainSettings
from bayesprune.turbo.subnormal import drop_tiny

EAGER_STEPS = 3  # a graph may be captured once the optimiser has made its state
FIRST_MOMENTS = ("exp_avg", "momentum_buffer")  # of Adam and SGD
EVALUATION_BATCH = {"cpu": 250, "cuda": 1000}  # larger ones leave a processor's cache


class OptimiserSettings(Protocol):
    """What settings say about an optimiser."""

    @property
    def optimiser(self) -> str: ...  # adam, or sgd with Nesterov's momentum
    @property
    def learning_rate(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...


def make_optimiser(parameters: Iterable[Tensor], settings: OptimiserSettings) -> torch.optim.Optimizer:
    """The optimiser of a phase, over those parameters that are being trained.

    On CUDA one kernel does all of a step: of small networks the number of kernels is what takes the time.
    """
    s, trained = settings, [p for p in parameters if p.requires_grad]
    fused = True if trained[0].is_cuda else None
    if s.optimiser == "adam":
        capturable = trained[0].is_cuda
        return torch.optim.Adam(
            trained, s.learning_rate, weight_decay=s.weight_decay, capturable=capturable, fused=fused
        )
    nesterov = s.momentum > 0
    return torch.optim.SGD(
        trained, s.learning_rate, s.momentum, weight_decay=s.weight_decay, nesterov=nesterov, fused=fused
    )


@dataclass(frozen=True)
class Teacher:
    """A network whose predictions another one learns beside the labels (Hinton 2015).

    share: of the loss; the labels have the rest.  temperature: by which both outputs are softened.
    """

    network: nn.Module
    share: float
    temperature: float

    @classmethod
    def from_settings(
        cls, settings: PlainSettings, phase: str, model: nn.Module, state: Mapping[str, Tensor]
    ) -> Self | None:
        """A copy of the model with the weights of `state`, which stay as they are; None where nobody teaches."""
        if not settings.has_teacher(phase):
            return None
        network = copy.deepcopy(model).eval().requires_grad_(False)
        World().unwrap(network)
        network.load_state_dict(state)
        return cls(network, settings.distil, settings.distil_temperature)

    def blended(self, loss: Tensor, likelihood: Likelihood, output: Tensor, x: Tensor) -> Tensor:
        """The loss on the labels and the distance from the teacher's predictions for x, by their shares."""
        with torch.no_grad():
            taught = self.network(x)
        return (1 - self.share) * loss + self.share * likelihood.divergence(output, taught, self.temperature)


class TrainStep:
    """Forward, backward, the prior's pull, the optimiser, masks: called with a batch, returns its loss.

    prior: None to train without one.  decoupled: the pull is a proximal step after the optimiser's (SGD); otherwise it
    is added to the gradients, so that it passes through the optimiser's preconditioner (Adam).
    masks: by layer name; dead weights are held at zero.
    teacher: a network to learn from beside the labels.  penalty: added to the loss; tensor work only, so that it can be
    captured.
    bfloat16: half precision on CUDA.  On a CPU everything is float32: there it gained nothing, and where a virtual
    machine announces matrix tiles without their sizes torch's Linear in half precision ends the process.
    world: several processes take their share of the batch and average their gradients.
    On CUDA the step of a single process is captured once and replayed, whatever the learning rate; graph=False is for
    networks that cannot be.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        optimiser: torch.optim.Optimizer,
        *,
        prior: NetworkPrior | None = None,
        decoupled: bool = False,
        masks: Mapping[str, Tensor] | None = None,
        teacher: Teacher | None = None,
        penalty: Callable[[], Tensor] | None = None,
        bfloat16: bool = False,
        graph: bool = True,
        world: World | None = None,
    ) -> None:
        self.model, self.likelihood, self.optimiser = model, likelihood, optimiser
        self.prior, self.decoupled = prior, decoupled
        self.teacher, self.penalty = teacher, penalty
        modules = dict(model.named_modules())
        self._masked: list[tuple[Tensor, Tensor]] = []
        for name, mask in (masks or {}).items():
            weight = modules[name].weight
            assert isinstance(weight, Tensor)
            self._masked.append((weight.detach(), mask.to(weight)))
        self._graph: torch.cuda.CUDAGraph | None = None
        self._world = world or World()
        self._forward = self._world.wrap(model)
        self._on_cuda = next(model.parameters()).is_cuda
        self._may_capture = graph and self._on_cuda and self._world.size == 1
        if self._may_capture:  # a graph reads the rate from where it was when it was captured
            for group in optimiser.param_groups:
                group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=next(model.parameters()).device)
        self._half = bfloat16 and self._on_cuda
        # Matrix units read half-precision images channel by channel: VGG-11 on an H200 takes 1.5 instead of 2.3 ms.
        self._channels_last = self._half or lies_channels_last(model)
        self._steps = 0
        self._x = self._y = self._loss = torch.empty(0)
        self._learning_rate = float("nan")

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use another learning rate from the next step on."""
        if learning_rate != self._learning_rate:
            self._learning_rate = learning_rate
            for group in self.optimiser.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(learning_rate)
                else:
                    group["lr"] = learning_rate
            if self.prior is not None and self.decoupled:
                self.prior.set_decay_rate(learning_rate)  # before a step is captured, not inside it

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = self._world.share(x), self._world.share(y)
        self._steps += 1
        if not self._may_capture or self._steps <= EAGER_STEPS:
            return self._step(self._laid_out(x), y)
        if self._graph is None or x.shape != self._x.shape:
            self._capture(self._laid_out(x), y)
        assert self._graph is not None
        self._x.copy_(x)
        self._y.copy_(y)
        self._graph.replay()
        return self._loss

    def drop_tiny(self) -> None:
        """Set what has vanished from the optimiser's moments to zero; only a processor is the slower for it."""
        if not self._on_cuda:
            moments = (state.get(name) for state in self.optimiser.state.values() for name in FIRST_MOMENTS)
            drop_tiny(one for one in moments if isinstance(one, Tensor))

    def _laid_out(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last) if self._channels_last and x.ndim == 4 else x

    def _capture(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x.clone(), y.clone()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss = self._step(self._x, self._y)

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._half):
            loss = self._loss_of(x, y)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self._world.average_gradients(self.likelihood.parameters())
        if self.prior is not None and not self.decoupled:
            self.prior.add_gradients()
        self.optimiser.step()
        if self.prior is not None and self.decoupled:
            self.prior.decay(self._learning_rate)
        if self._masked:
            torch._foreach_mul_([w for w, _ in self._masked], [m for _, m in self._masked])
        return loss.detach()

    def _loss_of(self, x: Tensor, y: Tensor) -> Tensor:
        output = self._forward(x)
        loss = self.likelihood.negative_log_likelihood(output, y)
        if self.teacher is not None:
            loss = self.teacher.blended(loss, self.likelihood, output, x)
        return loss if self.penalty is None else loss + self.penalty()


@torch.no_grad()
def evaluate(model: nn.Module, likelihood: Likelihood, split: Split) -> dict[str, float]:
    """Score of a network on a split (accuracy, or rmse and r2) and its mean negative log likelihood; mode restored."""
    was_training = model.training
    model.eval()
    outputs = torch.cat([model(x).float() for x, _ in Batches(split, EVALUATION_BATCH.get(split.x.device.type, 1000))])
    model.train(was_training)
    nll = likelihood.negative_log_likelihood(outputs, split.y)
    return {**likelihood.score(outputs, split.y), "nll": float(nll)}


class masked:
    """Context in which dead weights are zero; the weights come back unchanged."""

    def __init__(self, model: nn.Module, masks: Mapping[str, Tensor]) -> None:
        modules = dict(model.named_modules())
        self._weights = {name: modules[name].weight for name in masks}
        self._masks = masks
        self._kept: dict[str, Tensor] = {}

    def __enter__(self) -> None:
        with torch.no_grad():
            for name, mask in self._masks.items():
                weight = self._weights[name]
                assert isinstance(weight, Tensor)
                self._kept[name] = weight.detach().clone()
                weight.mul_(mask)

    def __exit__(self, *_: object) -> None:
        with torch.no_grad():
            for name, kept in self._kept.items():
                weight = self._weights[name]
                assert isinstance(weight, Tensor)
                weight.copy_(kept)
