"""The command `bayesprune robustness`: networks under attack and in noise, before and after adversarial fine-tuning."""

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from bayesprune import data
from bayesprune.cli.compress import STOPPED
from bayesprune.cli.networks import device_by_name
from bayesprune.cli.results import check_fit
from bayesprune.cli.sources import Source, open_source
from bayesprune.reproduce.methods import OURS, UNPRUNED
from bayesprune.reproduce.robustness_claims import DROP_AT
from bayesprune.reproduce.robustness_markdown import PARTS, Column, columns, figure_of, parts
from bayesprune.reproduce.robustness_report import write_robustness
from bayesprune.robustness import HardenSettings, MeasureSettings, Plan, RecordFiles, Subject, study, work_of
from bayesprune.runs import Display, Interrupts, RunError
from bayesprune.runs.disk_errors import reading
from bayesprune.runs.folder import CHECKPOINT, NETWORK
from bayesprune.turbo import Interrupted

EPSILONS = "0,0.01,...,0.1"
FACTS = ("accuracy", "nonzero_fraction", "macs_removed", "structure")  # of what a file says about its network


@dataclass(frozen=True)
class _Network:
    """A network of the command: where it was found, its description, how to get it, and what to do with it."""

    source: Source
    subject: Subject
    load: Callable[[], nn.Module]
    plan: Plan


class _Watcher:
    """What one network reports goes to the display of all."""

    def __init__(self, display: Display, interrupts: Interrupts, label: str) -> None:
        self._display, self._interrupts, self._label = display, interrupts, label

    def row(self, row: dict[str, Any]) -> None:
        shown = {key: value for key, value in row.items() if key != "epoch"}
        self._display.row(shown | {"phase": self._label})

    def step(self, done: int, total: int) -> None:
        self._display.step(done, total)

    def should_stop(self) -> bool:
        return bool(self._interrupts.requested)


def robustness(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, or files of networks (.safetensors).", show_default=False),
    ],
    eps: Annotated[str, typer.Option(help="Strengths of FGSM in pixels between 0 and 1.")] = EPSILONS,
    pgd_eps: Annotated[str, typer.Option(help="Strengths of PGD, the stronger and slower attack; '' for none.")] = (
        "0.05,0.1"
    ),
    pgd_steps: Annotated[int, typer.Option(help="Steps of PGD, each 2.5 eps / steps long.")] = 10,
    noise: Annotated[str, typer.Option(help="Standard deviations of Gaussian noise; '' for none.")] = "0,0.05,0.1,0.2",
    adversarial_epochs: Annotated[
        int, typer.Option(help="Fine-tune a copy of every network with adversarial examples, and measure it again.")
    ] = 0,
    adversarial_eps: Annotated[
        str,
        typer.Option(help="Strength in fine-tuning: two numbers for a random one between them, one for a fixed one."),
    ] = "0,0.1",
    learning_rate: Annotated[float, typer.Option(help="Of fine-tuning (Adam); falls by a cosine.")] = 3e-3,
    batch_size: Annotated[int, typer.Option(help="Of fine-tuning: half clean, half adversarial.")] = 128,
    dense: Annotated[
        bool, typer.Option("--dense", help="Measure the networks of run folders before pruning as well.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Draws noise, starts of PGD, and the order of fine-tuning.")] = 0,
    data_set: Annotated[
        str | None,
        typer.Option("--data", help=f"For networks that do not say their data: {', '.join(data.DATA_SETS)}."),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Look for the data in this folder first.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")] = Path("robustness"),
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Attack networks on all test images, add noise, and see how well they know what they know.

    **FGSM** moves every pixel by eps in the direction that hurts most, **PGD** looks for something worse in several
    steps; pixels are between 0 (black) and 1 (white), and images stay so.  **Noise** is Gaussian.  **ECE** is the
    distance between how sure and how right a network is.  With --adversarial-epochs, copies learn from adversarial
    *training* images; dead weights stay zero.

    OUTPUT gets robustness.json, .md, .png and .svg with a line for every network, and networks/NAME.json of each.
    Stopped, the same command goes on; what is finished is kept as long as the network and the settings are the same.

    Example: bayesprune robustness runs/lenet5-digits-1 --dense --adversarial-epochs 10

    Example: bayesprune robustness results/table2/rows/lenet5/*.safetensors --eps 0,0.01,...,0.1 -o results/robustness
    """
    measuring = MeasureSettings(
        epsilons=_numbers(eps, "--eps"),
        pgd_epsilons=_numbers(pgd_eps, "--pgd-eps"),
        pgd_steps=pgd_steps,
        noise=_numbers(noise, "--noise"),
        seed=seed,
    )
    hardening = HardenSettings(
        adversarial_epochs, _range(adversarial_eps), batch_size=batch_size, learning_rate=learning_rate, seed=seed
    )
    place = device_by_name(device)
    networks = _networks(runs, Plan(measuring, hardening), data_set, dense, place)
    records = _study(networks, RecordFiles(output), data_dir, place, quiet)
    typer.echo(_table(records))
    written, note = write_robustness(records, output, str(place))
    for path in written:
        typer.echo(f"written    {path}")
    if note:
        typer.echo(f"note       {note}")


def _study(
    networks: Sequence[_Network], files: RecordFiles, data_dir: Path | None, place: torch.device, quiet: bool
) -> list[dict[str, Any]]:
    """The records of all networks; those that are not complete are made so."""
    records = []
    work = [work_of(one.subject, files, one.plan) for one in networks]
    loaded: tuple[tuple[str, float, int], data.DataSet] | None = None
    with Display(sum(work), quiet=quiet) as display, Interrupts() as interrupts:
        if done := work.count(0):
            display.note(f"{done} of {len(networks)} networks are finished and kept")
        for number, (one, epochs) in enumerate(zip(networks, work, strict=True), start=1):
            subject = one.subject
            split = (subject.data, subject.validation, subject.split_seed)
            if loaded is None or loaded[0] != split:
                found = data.load(split[0], data_dir, validation=split[1], seed=split[2], device=place)
                loaded = (split, found)
            check_fit(one.source, loaded[1])
            label = f"{number}/{len(networks)} {subject.name}"
            if epochs:
                display.phase(label)
            try:
                watcher = _Watcher(display, interrupts, label)
                records.append(study(subject, one.load, loaded[1], files, one.plan, watcher))
            except Interrupted:
                display.note(f"stopped at {subject.name}; what is finished is kept, the same command goes on")
                raise typer.Exit(STOPPED) from None
    return records


def _networks(
    runs: Sequence[Path], plan: Plan, data_set: str | None, dense: bool, place: torch.device
) -> list[_Network]:
    """Describe what was named; RunError where networks cannot be compared."""
    if data_set is not None and data_set not in data.DATA_SETS:
        raise typer.BadParameter(f"{data_set!r} is not one of {', '.join(data.DATA_SETS)}", param_hint="--data")
    found = []
    for path in runs:
        source = open_source(path)
        found.append(_smaller(source, plan, data_set, place))
        if dense and source.folder is not None:
            found.append(_before_pruning(source, found[-1], place))
    first = found[0].subject
    for one in found:
        if one.subject.data != first.data:
            raise RunError(
                f"{first.name} is for {first.data} and {one.subject.name} for {one.subject.data}; "
                "compare networks of the same data, each in a command and an --output of its own"
            )
    return _with_own_names(found)


def _smaller(source: Source, plan: Plan, data_set: str | None, place: torch.device) -> _Network:
    """The network in a run folder or file."""
    file, settings = source.artefact, source.plan.get("settings")
    name = source.text("data") or data_set
    if name not in data.DATA_SETS:
        raise RunError(f"{source.path} does not say on which data; add --data with one of {', '.join(data.DATA_SETS)}")
    settings = settings if isinstance(settings, dict) else {}
    validation, seed = settings.get("validation"), settings.get("seed")
    if settings.get("augment") is True:
        plan = replace(plan, hardening=replace(plan.hardening, augment=True))
    subject = Subject(
        name=_name(source),
        method=source.text("method") or (OURS if settings else "unknown"),
        sha256=_checksum(file.path),
        model=source.text("model"),
        data=name,
        validation=validation if isinstance(validation, float) and 0 <= validation < 1 else 0.1,
        split_seed=seed if type(seed) is int and seed >= 0 else 0,
        facts={key: file.metrics[key] for key in FACTS if file.metrics and key in file.metrics},
    )

    def load() -> nn.Module:
        return source.network(place)

    return _Network(source, subject, load, plan)


def _before_pruning(source: Source, smaller: _Network, place: torch.device) -> _Network:
    """The same run's network before pruning."""
    assert source.folder is not None
    network, what = source.dense()
    if network is None or not what.endswith("before pruning"):
        raise RunError(f"{source.path} holds no network from before pruning; leave --dense out")
    name = f"{smaller.subject.name}-{UNPRUNED}"
    sha256 = _checksum(source.folder / CHECKPOINT)
    subject = replace(smaller.subject, name=name, method=UNPRUNED, sha256=sha256, facts={})
    return _Network(source, subject, lambda: network.to(place), smaller.plan)


def _name(source: Source) -> str:
    """Of a run its folder, of a file its stem."""
    path = source.path.resolve()
    text = path.parent.name if path.name == NETWORK else path.name if source.folder is not None else path.stem
    return re.sub(r"[^A-Za-z0-9_.+=-]+", "-", text).lstrip(".-") or "network"


def _with_own_names(networks: Sequence[_Network]) -> list[_Network]:
    """Two files of the same name get the beginning of their checksums; the same network twice is an error."""
    names = [one.subject.name for one in networks]
    result: list[_Network] = []
    for one in networks:
        subject = one.subject
        if names.count(subject.name) > 1:
            subject = replace(subject, name=f"{subject.name}-{subject.sha256[:8]}")
        if any(other.subject.name == subject.name for other in result):
            raise RunError(f"{subject.name} was given twice; name every network once")
        result.append(replace(one, subject=subject))
    return result


def _checksum(path: Path) -> str:
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _numbers(text: str, option: str) -> tuple[float, ...]:
    """Numbers with commas between; `a,b,...,c` goes on in steps of b - a."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    found: list[float] = []
    try:
        for place, word in enumerate(words):
            if word == "...":
                begin, step, end = found[-1], found[-1] - found[-2], float(words[place + 1])
                count = round((end - begin) / step)
                if not 1 <= count <= 1000 or not math.isclose(begin + count * step, end):
                    raise ValueError
                found += [round(begin + number * step, 10) for number in range(1, count)]
            else:
                found.append(float(word))
    except (ValueError, IndexError, ZeroDivisionError):
        raise typer.BadParameter(
            f"{text!r} is not a list of numbers such as 0.05,0.1 or {EPSILONS}", param_hint=option
        ) from None
    return tuple(dict.fromkeys(found))


def _range(text: str) -> tuple[float, float]:
    found = _numbers(text, "--adversarial-eps")
    if len(found) not in (1, 2):
        raise typer.BadParameter(f"{text!r} must be one or two numbers such as 0,0.1", param_hint="--adversarial-eps")
    return found[0], found[-1]


def _table(records: Sequence[dict[str, Any]]) -> str:
    """The main figures for a terminal; all of them are in the files."""
    shown = _main_columns(columns(records[0]["settings"]))
    lines = [["network", "", "clean", *(title for title, *_ in shown), "ECE"]]
    for record, part, found in parts(records):
        values = [figure_of(found, column) for column in shown]
        figures = [found["clean"]["accuracy"], *values, found["clean"]["ece"]]
        texts = ("" if figure is None else f"{figure:.2%}" for figure in figures)
        lines.append([record["name"], PARTS[part], *texts])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_aligned(line, widths) for line in lines)


def _main_columns(every: Sequence[Column]) -> list[Column]:
    """FGSM at the epsilon of the paper's text, and the strongest of every kind."""
    strongest = {
        max((one for one in every if one[1] == kind), key=lambda one: one[3]) for kind in {c[1] for c in every}
    }
    return [one for one in every if one in strongest or one[1:] == ("fgsm", "epsilon", DROP_AT)]


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    texts = line[:2]  # names to the left, numbers to the right
    return "  ".join(
        [text.ljust(width) for text, width in zip(texts, widths, strict=False)]
        + [number.rjust(width) for number, width in zip(line[2:], widths[2:], strict=True)]
    ).rstrip()
