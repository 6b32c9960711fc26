"""A data set ready for training: normalised tensors on the device that computes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesprune.data.errors import DataError
from bayesprune.data.splitting import hold_out

STATISTICS_CHUNK = 256  # examples at a time, so that float64 copies stay in the processor's cache

MOST_CLASSES = 100_000  # larger class indices are a mistake, such as regression targets that are integers


@dataclass(frozen=True, eq=False)
class Split:
    """One part of a data set: inputs `x` (n, c, h, w) or (n, features), targets `y` (n,) or (n, outputs).

    `x` is float32; `y` is int64 for classes and float32 for regression; both live on the same device.
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.x.shape[:1] != self.y.shape[:1] or self.x.ndim < 2:
            raise DataError(
                "x (n, ...) and y (n, ...) must hold as many examples each, x in at least two dimensions, "
                f"got x {tuple(self.x.shape)} and y {tuple(self.y.shape)}; "
                "give one row per example, x[:, None] for a single feature"
            )

    def __len__(self) -> int:
        return self.x.shape[0]

    def __repr__(self) -> str:
        x, y = (f"{tuple(one.shape)} {str(one.dtype).removeprefix('torch.')}" for one in (self.x, self.y))
        return f"Split(x={x}, y={y}, device={self.x.device})"


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training, validation and test part of a data set, normalised with the training part's statistics.

    `train` is for fitting and `validation` for every choice made on the way: epochs, thresholds, settings.
    `test` is for the final figure: read it once, after all choices.  Nothing here reads it for you.

    `classes` are the names, empty for regression.  `mean` and `std` (c,) turned the raw inputs into `x`:
    x = (raw - mean) / std per channel.  `source` says where the data came from, `seed` what drew the splits.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    validation: Split | None
    test: Split
    mean: Tensor
    std: Tensor
    source: str = "tensors"
    seed: int = 0

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, (c, h, w) for images."""
        return tuple(self.train.x.shape[1:])

    def __repr__(self) -> str:
        kind = f"{len(self.classes)} classes" if self.classes else f"targets of shape {tuple(self.train.y.shape[1:])}"
        parts = (("train", self.train), ("validation", self.validation), ("test", self.test))
        counts = ", ".join(f"{name}={0 if part is None else len(part)}" for name, part in parts)
        return (
            f"DataSet({self.name!r}, inputs of shape {self.input_shape}, {kind}, {counts}, "
            f"device={self.train.x.device}, source={self.source!r}, seed={self.seed})"
        )

    @classmethod
    def from_tensors(
        cls,
        x: Tensor,
        y: Tensor,
        *,
        test: tuple[Tensor, Tensor] | float,
        validation: tuple[Tensor, Tensor] | float = 0.1,
        classes: Sequence[str] = (),
        normalise: bool = True,
        seed: int = 0,
        device: str | torch.device = "cpu",
        name: str = "tensors",
        source: str = "tensors",
    ) -> "DataSet":
        """Make a data set of your own tensors; they are copied, never changed.

        Args:
            x: inputs (n, c, h, w) or (n, features), any real dtype; they become float32.
            y: class indices (n,), integers, maps of them (n, h, w), or regression targets (n,) or (n, outputs), floats.
            test: the test pair (x, y), or how much of `x` to hold out for it (fraction, or number as an int).
            validation: likewise; taken from what `test` leaves.  0 gives no validation part.
            classes: names of the classes; by default their numbers.
            normalise: bring every channel or feature of the training part to mean 0 and variance 1.  A network that
                was trained on it wants its inputs so: (raw - mean) / std with `mean` and `std` of this object.
            seed: draws what is held out; every class gives its share, regression targets are drawn freely.
            device: where the tensors shall live.
            name: how to call the set in reports.
            source: where it came from, for reports.
        """
        generator = torch.Generator().manual_seed(seed)
        for label, given_tensor in (("x", x), ("y", y)):
            if not isinstance(given_tensor, Tensor):
                raise DataError(
                    f"{label} must be a tensor, got {type(given_tensor).__name__}; try torch.as_tensor({label})"
                )
        y = _as_targets(y)
        _check_pair(x, y)
        given = [pair[1] for pair in (test, validation) if isinstance(pair, tuple)]
        names = _class_names([y, *given], classes)
        (x, y), test_pair = _part(x, y, test, generator)
        (x, y), validation_pair = _part(x, y, validation, generator)
        channels = x.shape[1]
        mean, std = channel_statistics(x) if normalise else (torch.zeros(channels), torch.ones(channels))

        def split(inputs: Tensor, targets: Tensor) -> Split:
            return Split(_normalised(inputs, mean, std, device), targets.to(device))

        return cls(
            name=name,
            classes=names,
            train=split(x, y),
            validation=split(*validation_pair) if len(validation_pair[0]) else None,
            test=split(*test_pair),
            mean=mean.to(device),
            std=std.to(device),
            source=source,
            seed=seed,
        )


def channel_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation (c,) of `x` (n, c, ...) per channel, float32, computed in float64.

    The deviation divides by n; a constant channel gets 1, so that normalising leaves zeros there.
    """
    if x.dtype == torch.uint8:  # counting the 256 values is exact and ten times faster
        values = torch.arange(256, dtype=torch.float64)
        counts = [torch.bincount(x[:, c].flatten(), minlength=256).cpu().double() for c in range(x.shape[1])]
        shares = torch.stack(counts) / counts[0].sum()
        mean = shares @ values
        return _as_scale(mean, (shares * (values - mean[:, None]).square()).sum(1))
    others = [dim for dim in range(x.ndim) if dim != 1]
    chunks = [x[start : start + STATISTICS_CHUNK] for start in range(0, len(x), STATISTICS_CHUNK)]
    count = x.numel() / x.shape[1]
    mean = torch.stack([chunk.sum(others, dtype=torch.float64) for chunk in chunks]).sum(0) / count
    centre = mean.reshape(-1, *[1] * (x.ndim - 2))
    variance = torch.stack([(chunk.double() - centre).square().sum(others) for chunk in chunks]).sum(0) / count
    return _as_scale(mean, variance)


def _as_scale(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return `mean` (c,) and the deviation (c,) of `variance` (c,) in float32, 1 where there is none."""
    std = variance.sqrt()
    return mean.float(), torch.where(std > 0, std, torch.ones_like(std)).float()


def _normalised(x: Tensor, mean: Tensor, std: Tensor, device: str | torch.device) -> Tensor:
    """Return (x - mean) / std as a float32 copy on `device`; `x` (n, c, ...), `mean` and `std` (c,)."""
    shape = (-1, *[1] * (x.ndim - 2))
    copy = x.to(device, torch.float32, copy=True)
    return copy.sub_(mean.to(device).reshape(shape)).div_(std.to(device).reshape(shape))


def _part(
    x: Tensor, y: Tensor, wanted: tuple[Tensor, Tensor] | float, generator: torch.Generator
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return what remains of (x, y) and the wanted part: given as such, or held out of (x, y)."""
    if isinstance(wanted, tuple):
        given = (wanted[0], _as_targets(wanted[1]))
        _check_pair(*given)
        if given[0].shape[1:] != x.shape[1:] or given[1].shape[1:] != y.shape[1:] or given[1].dtype != y.dtype:
            raise DataError(
                "all parts must agree in the shape of an example and the kind of target, got "
                f"x {tuple(x.shape)}, y {tuple(y.shape)} {y.dtype} and x {tuple(given[0].shape)}, "
                f"y {tuple(given[1].shape)} {given[1].dtype}; reshape or convert one of them"
            )
        return (x, y), given
    stay, go = hold_out(y, wanted, generator, stratify=not y.is_floating_point() and y.ndim == 1)
    if not len(go):
        return (x, y), (x[:0], y[:0])
    stay, go = stay.to(x.device), go.to(x.device)
    return (x[stay], y[stay.to(y.device)]), (x[go], y[go.to(y.device)])


def _as_targets(y: Tensor) -> Tensor:
    return y.to(torch.float32) if y.is_floating_point() else y.to(torch.int64)


def _check_pair(x: Tensor, y: Tensor) -> None:
    """Raise DataError unless `x` and `y` are matching, non-empty and finite."""
    Split(x, y)
    if not len(x):
        raise DataError("a part of a data set must hold at least one example, got none; check the tensors given")
    if x.is_complex() or y.is_complex():
        raise DataError(f"x and y must be real, got {x.dtype} and {y.dtype}; split them in real and imaginary part")
    if not y.is_floating_point() and y.ndim == 2:  # one-hot, or (n, 1); of a sequence it would be a guess
        raise DataError(
            f"class indices must have shape (n,), or (n, h, w) for maps, got {tuple(y.shape)}; "
            "try y.argmax(1) or y.flatten()"
        )
    for label, tensor in (("x", x), ("y", y)):
        if tensor.is_floating_point() and (bad := int((~tensor.isfinite()).sum())):
            raise DataError(f"{label} must be finite, got {bad} values that are not; remove or replace them")


def _class_names(targets: Sequence[Tensor], names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the classes, checked against the class indices of every part; () for regression."""
    if targets[0].is_floating_point():
        return ()
    filled = [y for y in targets if len(y)]
    lowest, highest = min(int(y.min()) for y in filled), max(int(y.max()) for y in filled)
    count = len(names) or min(highest + 1, MOST_CLASSES)
    if lowest < 0 or highest >= count:
        raise DataError(
            f"class indices must be in 0..{count - 1}, got {lowest}..{highest}; "
            "renumber them, name every class, or pass y.float() for regression"
        )
    return tuple(names) or tuple(str(index) for index in range(count))
