"""Load a data set by name."""

import os
from dataclasses import dataclass

import torch

from bayesprune.data.dataset import DataSet
from bayesprune.data.digits import read_digits
from bayesprune.data.folders import locate
from bayesprune.data.registry import DIGITS, file_spec
from bayesprune.data.spec import FileSpec, RawData


@dataclass(frozen=True, eq=False)
class Reading:
    """A data set as published, and the place it was read from."""

    raw: RawData
    source: str


def read(name: str | FileSpec, data_dir: str | os.PathLike[str] | None = None) -> Reading:
    """Return the data set `name` as published, uint8, every file checked; or raise DataError."""
    if name == DIGITS:
        return Reading(read_digits(), "scikit-learn")
    spec = file_spec(name) if isinstance(name, str) else name
    source = locate(spec, data_dir)
    return Reading(spec.read(source), str(source.path))


def load(
    name: str | FileSpec,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    validation: float = 0.1,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> DataSet:
    """Load a data set: normalised float32 tensors on `device`, in three parts.

    The test part is the published one (for `digits` a fixed one of ours).  The validation part comes out of
    the published training data, drawn by `seed`, every class in its share.  Mean and deviation per channel
    are those of the remaining training part and are applied to all three.

    Args:
        name: one of `DATA_SETS`, or a spec of your own.
        data_dir: the folder to search first; then $BAYESPRUNE_DATA and the user's cache folder.
        validation: fraction of the training data to hold out, or their number as an int; 0 for none.
        seed: draws the validation part.
        device: where the tensors shall live.
    """
    reading = read(name, data_dir)
    raw = reading.raw
    return DataSet.from_tensors(
        torch.from_numpy(raw.train.images),
        torch.from_numpy(raw.train.labels),
        test=(torch.from_numpy(raw.test.images), torch.from_numpy(raw.test.labels)),
        validation=validation,
        classes=raw.classes,
        seed=seed,
        device=device,
        name=name if isinstance(name, str) else name.name,
        source=reading.source,
    )
