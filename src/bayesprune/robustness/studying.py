"""The study of one network, from its file to its record."""

from collections.abc import Callable
from typing import Any

from torch import nn

from bayesprune import artefact
from bayesprune.data import DataSet
from bayesprune.provenance import hardware, versions
from bayesprune.robustness.attacks import Bounds
from bayesprune.robustness.hardening import Hardened, Watcher, harden
from bayesprune.robustness.measuring import MeasureSettings, measure
from bayesprune.robustness.records import Plan, RecordFiles, Subject
from bayesprune.runs.atomic import remove_temporary_files
from bayesprune.runs.disk_errors import starting
from bayesprune.turbo import Interrupted


def work_of(subject: Subject, files: RecordFiles, plan: Plan) -> int:
    """How much is to be done: epochs of fine-tuning, and one for each measurement."""
    found = files.read(subject, plan)
    hardening = plan.hardening.epochs + 1 if plan.hardening.epochs and "after" not in found else 0
    return hardening + ("before" not in found)


def study(
    subject: Subject,
    load: Callable[[], nn.Module],
    data: DataSet,
    files: RecordFiles,
    plan: Plan,
    watcher: Watcher,
) -> dict[str, Any]:
    """Measure a network, fine-tune a copy of it with adversarial examples, measure that; returns the record.

    What the folder has already is not done again; each part is written when it is finished.  With 0 epochs of
    fine-tuning, a record of more stays on the disk and is returned without its second part.

    Args:
        subject: the network's name and origin.
        load: gives it, on the device of the data.
        data: with the split that it was trained with.
        files: where records are kept.
        plan: what to do.
        watcher: told about the progress.
    """
    parts = files.read(subject, plan)
    bounds = Bounds.of(data)
    if "before" not in parts:
        parts = {"before": _measured(load().eval(), data, bounds, plan.measuring, watcher)}
        files.write(subject, plan, parts)
    if not plan.hardening.epochs:
        return subject.as_dict() | {"settings": plan.measuring.as_dict()} | _without_after(parts)
    if "after" not in parts:
        result = harden(load().eval(), data.train, bounds, plan.hardening, validation=data.validation, watcher=watcher)
        after = _measured(result.network, data, bounds, plan.measuring, watcher)
        _keep(files, subject, data, plan, result, after)
        parts |= {"adversarial": plan.hardening.as_dict(), "history": result.history, "after": after}
        return files.write(subject, plan, parts)
    return subject.as_dict() | {"settings": plan.measuring.as_dict()} | parts


def _measured(
    network: nn.Module, data: DataSet, bounds: Bounds, settings: MeasureSettings, watcher: Watcher
) -> dict[str, Any]:
    """The figures on the test part; told to the watcher as a row."""

    def progress(done: int, total: int) -> None:
        watcher.step(done, total)
        if watcher.should_stop():
            raise Interrupted("the measurement was stopped")

    figures = measure(network, data.test, bounds, settings, progress=progress)
    figures |= {"versions": versions(), "hardware": hardware(data.test.x.device)}
    row = {"accuracy": figures["clean"]["accuracy"]}
    row |= {f"FGSM {one['epsilon']:g}_accuracy": one["accuracy"] for one in figures["fgsm"][-1:]}
    row |= {f"PGD {one['epsilon']:g}_accuracy": one["accuracy"] for one in figures["pgd"][-1:]}
    watcher.row(row | {"seconds": figures["seconds"]})
    return figures


def _keep(
    files: RecordFiles, subject: Subject, data: DataSet, plan: Plan, result: Hardened, after: dict[str, Any]
) -> None:
    """Write the fine-tuned network; its record comes after it."""
    path = files.hardened(subject)
    config = {
        **{"model": subject.model, "data": subject.data, "method": f"{subject.method}, hardened"},
        "hardened_from": subject.sha256,
        "settings": {"validation": subject.validation, "seed": subject.split_seed},
        "adversarial": plan.hardening.as_dict(),
    }
    metrics = {"accuracy": after["clean"]["accuracy"]}
    with starting(path):
        files.folder.mkdir(parents=True, exist_ok=True)
        remove_temporary_files(path)
        artefact.save(
            path, result.network, example_shape=data.input_shape, classes=data.classes, config=config, metrics=metrics
        )


def _without_after(parts: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parts.items() if key not in ("after", "history", "adversarial")}
