"""The same as `train` without an ensemble: for large networks and for settings that cannot be stacked."""

import copy
import dataclasses
from collections.abc import Sequence

from bayesprune.data import DataSet
from bayesprune.frontier.ensemble import NetworkSource, first_networks
from bayesprune.frontier.members import FINISHED, Member
from bayesprune.surgery import ProofError
from bayesprune.turbo import CollapsedError, Compression, DivergedError, Recorder, Settings, Size, compress


def train_one_by_one(
    network: NetworkSource,
    data: DataSet,
    settings: Sequence[Settings],
    *,
    order_seed: int | None = None,
    recorder: Recorder | None = None,
) -> list[Member]:
    """Compress one network per setting, one after another; arguments and result are those of `train`.

    `compress` evaluates on the test split when it is done; those figures are thrown away.
    """
    order_seed = settings[0].seed if order_seed is None else order_seed
    return [_one(network, data, one, order_seed, recorder) for one in settings]


def _one(
    network: NetworkSource, data: DataSet, settings: Settings, order_seed: int, recorder: Recorder | None
) -> Member:
    model = copy.deepcopy(first_networks(network, [settings])[0])
    ordered = dataclasses.replace(settings, seed=order_seed)
    try:
        result = compress(model, data, settings=ordered, recorder=recorder)
    except (CollapsedError, DivergedError, ProofError) as error:
        kind = type(error).__name__.removesuffix("Error").lower()
        return Member(settings, model.eval(), {}, {}, {}, None, f"{kind}: {error}")
    summary = result.summary
    collapsed = summary["status"].startswith("collapsed")
    notes = [*summary["notes"], *([] if collapsed or summary["status"] == FINISHED else [summary["status"]])]
    return Member(
        settings,
        result.network.eval(),
        result.masks,
        dict(summary["validation"]),
        dict(summary["validation_unpruned"]),
        None if collapsed else _size(result),
        summary["status"] if collapsed else FINISHED,
        notes,
    )


def _size(result: Compression) -> Size:
    summary, masks = result.summary, result.masks.values()
    weights = sum(mask.numel() for mask in masks)
    return Size(
        live_weights=sum(int(mask.sum()) for mask in masks),
        weights=weights,
        dense_weights=round(summary["dense_fraction"] * weights),
        macs=summary["macs"],
        macs_dense=summary["macs_dense"],
        structure=summary["structure"],
        empty_layers=[],
    )
