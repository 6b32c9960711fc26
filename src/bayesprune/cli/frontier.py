"""The commands `bayesprune frontier ...`: many settings at once, and the choice among what they give."""

import json
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import click
import torch
import typer
import typer.core
from torch import nn

from bayesprune import artefact, data, models
from bayesprune import frontier as frontiers
from bayesprune.cli.compress import KEEPS_UNITS, STOPPED, resolve
from bayesprune.cli.networks import device_by_name, network_of_plan
from bayesprune.frontier.members import FINISHED
from bayesprune.likelihoods import Classification
from bayesprune.runs import Display, Interrupts, RunError, new_folder, run_folder
from bayesprune.runs.atomic import write_atomically
from bayesprune.runs.disk_errors import reading, starting
from bayesprune.runs.plain_json import to_json
from bayesprune.turbo import Interrupted, Recorder, Settings, SettingsError
from bayesprune.turbo.plain_settings import differing
from bayesprune.turbo.training import evaluate

EPOCHS = ("warmup_epochs", "prune_epochs", "finetune_epochs")
PICKED = "picked.json"
SAVING = 0.02  # share of the time that saving states may take


class RunByDefault(typer.core.TyperGroup):
    """Options without a command are those of `run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`frontier --model lenet5` is `frontier run --model lenet5`."""
        options = args and args[0].startswith("-") and args[0] not in ctx.help_option_names
        return super().parse_args(ctx, ["run", *args] if options else args)


app = typer.Typer(
    cls=RunByDefault,
    help="Train many settings at once (`run`, also without that word) and choose (`pick`) from the networks that no "
    "other one beats.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command("run")
def run(
    model: Annotated[str | None, typer.Option(help=f"One of {', '.join(models.MODELS)}.")] = None,
    data_set: Annotated[str | None, typer.Option("--data", help=f"One of {', '.join(data.DATA_SETS)}.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file with any of model, data and settings; lists are tried in all ways.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE or NAME=[VALUE, ...]; may be repeated.")
    ] = None,
    epochs: Annotated[
        tuple[int, int, int] | None, typer.Option(help="Of warm-up, pruning and fine-tuning.", show_default=False)
    ] = None,
    chunk: Annotated[int, typer.Option(help="Members that are trained at once.", min=1)] = 48,
    one_by_one: Annotated[
        bool, typer.Option("--one-by-one", help="For large networks and settings that cannot be trained at once.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name of the folder; by default the next free one.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder that holds the run folders.")] = Path("runs"),
    resume: Annotated[Path | None, typer.Option(help="Go on with this folder; nothing else is needed.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Look for the data in this folder first.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Train every combination of some settings, and keep the networks that are not beaten.

    A network is beaten by one that is at least as accurate on the validation split, with at most as many nonzero
    weights and MACs.  Without --config, 48 settings around those known to work.  The folder holds frontier.json, the
    networks on the front in members/, and a picture; choose from them with: bayesprune frontier pick.

    All members see the same examples in the same order, that of the first seed.  Press Ctrl-C to stop; --resume goes
    on.

    Example: bayesprune frontier --model lenet5 --data fashion-mnist
    """
    place = device_by_name(device)
    if resume is None:
        asked = (model, data_set, config, setting, epochs, chunk, one_by_one, name, runs)
        _go_on(*_plan(*asked, data_dir, place), place, data_dir, quiet)
    else:
        _go_on(resume, None, place, data_dir, quiet)


@app.command("pick")
def pick(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a frontier.", show_default=False)],
    max_drop: Annotated[float, typer.Option(help="Points of validation accuracy that may be lost.")] = 0.5,
    output: Annotated[Path | None, typer.Option(help="Copy the network to this file.", show_default=False)] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Look for the data in this folder first.")] = None,
) -> None:
    """Choose the smallest network within an accuracy drop, and measure it on the test data.

    The validation split alone decides; the drop is measured from the most accurate network, unpruned or pruned.  The
    choice and its figures are written to RUN/picked.json.

    Example: bayesprune frontier pick runs/lenet5-fashion-mnist-frontier-1 --max-drop 0.5 --output small.safetensors
    """
    if output is not None and output.suffix != ".safetensors":
        raise typer.BadParameter(f"{output} must end in .safetensors", param_hint="--output")
    content = frontiers.read_frontier(folder)
    plan, records = content["plan"], content["members"]
    resume = frontiers.resume_command(folder)
    if not records:
        raise RunError(f"no member of the frontier in {folder} is trained yet; go on with: {resume}")
    place = frontiers.pick(records, max_drop)
    record, best = records[place], frontiers.best_accuracy(records)
    file = folder / record["file"]
    if not file.exists():
        raise RunError(
            f"member {place} would be picked, but its network is not in {file}; the networks of a frontier are in the "
            "folder that `bayesprune frontier run` has made"
        )
    network = artefact.load(file, device=device_by_name(device))
    loaded = _load(plan, data_dir, device_by_name(device))
    score = evaluate(network, Classification(), loaded.test)
    drop = 100 * (best - record["validation"]["accuracy"])
    if not content["finished"]:
        typer.echo(f"not finished, only {len(records)} members; go on with: {resume}")
    typer.echo(f"member     {place} of {len(records)}: {_own_settings(record, records)}")
    typer.echo(f"validation {record['validation']['accuracy']:.2%}, {drop:.2f} points below the best ({best:.2%})")
    typer.echo(f"test       {score['accuracy']:.2%}")
    typer.echo(f"weights    {record['nonzero_fraction']:.2%} nonzero")
    typer.echo(f"MACs       {record['macs_removed']:.1%} removed")
    typer.echo(f"structure  {'-'.join(map(str, record['structure']))}")
    if output is not None:
        with reading(file):
            content_of_file = file.read_bytes()
        with starting(output):
            write_atomically(output, [content_of_file])
    typer.echo(f"network    {output or file}")
    choice = {"max_drop": max_drop, "member": place, "settings": record["settings"], "test": score}
    choice |= {key: record[key] for key in ("validation", "nonzero_fraction", "macs_removed", "structure")}
    with starting(folder / PICKED):
        write_atomically(folder / PICKED, [to_json(choice, folder / PICKED, indent=2).encode() + b"\n"])
    typer.echo(f"written    {folder / PICKED}")


def _plan(
    model: str | None,
    data_set: str | None,
    config: Path | None,
    setting: list[str] | None,
    epochs: tuple[int, int, int] | None,
    chunk: int,
    one_by_one: bool,
    name: str | None,
    runs: Path,
    data_dir: Path | None,
    place: torch.device,
) -> tuple[Path, data.DataSet]:
    """Check what was asked for and make its folder; with the data, on their device."""
    grid = resolve(config, None, setting)
    chosen_model, chosen_data = grid.pop("model", None) or "lenet5", grid.pop("data", None) or "digits"
    chosen_model, chosen_data = model or chosen_model, data_set or chosen_data
    if chosen_model not in models.MODELS:
        raise typer.BadParameter(f"{chosen_model!r} is not one of {', '.join(models.MODELS)}", param_hint="--model")
    if chosen_data not in data.DATA_SETS:
        raise typer.BadParameter(f"{chosen_data!r} is not one of {', '.join(data.DATA_SETS)}", param_hint="--data")
    if epochs is not None:
        grid |= dict(zip(EPOCHS, epochs, strict=True))
    first = frontiers.expand(grid)[0]
    loaded = data.load(chosen_data, data_dir, validation=first.validation, seed=first.seed, device=place)
    has_epochs = any(one in grid for one in EPOCHS)
    if config is None:
        grid = frontiers.default_grid(len(loaded.train)) | grid
    settings = frontiers.expand(grid)
    if not has_epochs:
        settings = [one.for_examples(len(loaded.train)) for one in settings]
    if not one_by_one:
        frontiers.check_settings(settings)
    if len({one.validation for one in settings}) > 1:
        raise SettingsError("all members are compared on one validation split, got several values of validation")
    plan: dict[str, Any] = {"model": chosen_model, "data": chosen_data, "chunk": chunk, "one_by_one": one_by_one}
    plan |= {"order_seed": settings[0].seed, "validation": settings[0].validation}
    plan |= {"settings": [one.as_dict() for one in settings]}
    _network_of(plan, loaded, torch.device("cpu"))(settings[0])  # an error comes before a folder is made
    folder = run_folder(name, runs) if name else new_folder(f"{chosen_model}-{chosen_data}", "frontier", runs)
    frontiers.FrontierFolder.create(folder, plan).close()
    same = (first.validation, first.seed) == (plan["validation"], plan["order_seed"])
    return folder, loaded if same else _load(plan, data_dir, place)


def _go_on(path: Path, given: data.DataSet | None, place: torch.device, data_dir: Path | None, quiet: bool) -> None:
    """Train what the folder lacks, and show what is on the front.  given: the data, where they have been read."""
    with frontiers.FrontierFolder.open(path) as folder, Interrupts() as interrupts, warnings.catch_warnings():
        warnings.filterwarnings("ignore", KEEPS_UNITS)
        plan = folder.plan
        loaded = given or _load(plan, data_dir, place)
        with Display(_rounds(folder), quiet=quiet) as display:
            display.note(
                f"{len(folder.settings)} settings of {plan['model']} on {plan['data']} ({_axes(plan)}), folder {path}"
            )

            def recorder_of(save: Callable[[dict[str, Any]], None] | None, done: int) -> Recorder:
                display.epoch = done
                return _Progress(display, interrupts, save)

            try:
                records = frontiers.explore(folder, _network_of(plan, loaded, place), loaded, recorder_of)
            except Interrupted:
                kept = "stopped; finished members are saved" if plan["one_by_one"] else "stopped and saved"
                display.note(f"{kept}; go on with: {frontiers.resume_command(path)}")
                raise typer.Exit(STOPPED) from None
        if not any(record["status"] == FINISHED for record in records):
            reasons = "; ".join(dict.fromkeys(record["status"] for record in records))
            raise RunError(f"no member is finished ({reasons}); try weaker priors or a smaller learning rate")
        try:
            folder.write_figure()
        except ImportError as error:
            typer.echo(f"no picture: {error}")
    typer.echo(_table(records))
    typer.echo(f"everything is in {path}; choose with: bayesprune frontier pick {path} --max-drop 0.5")


def _axes(plan: Mapping[str, Any]) -> str:
    """What is varied, and in how many values."""
    settings = plan["settings"]
    counts = {name: len({json.dumps(one[name]) for one in settings}) for name in differing(settings)}
    return " x ".join(f"{count} {name}" for name, count in counts.items()) or "nothing is varied"


def _rounds(folder: frontiers.FrontierFolder) -> int:
    """Epochs of all chunks together."""
    chunk = 1 if folder.plan["one_by_one"] else folder.plan["chunk"]
    return sum(s.warmup_epochs + s.prune_epochs + s.finetune_epochs for s in folder.settings[::chunk])


def _load(plan: Mapping[str, Any], data_dir: Path | None, place: torch.device) -> data.DataSet:
    return data.load(plan["data"], data_dir, validation=plan["validation"], seed=plan["order_seed"], device=place)


def _network_of(plan: dict[str, Any], loaded: data.DataSet, place: torch.device) -> Callable[[Settings], nn.Module]:
    def make(settings: Settings) -> nn.Module:
        return network_of_plan(plan | {"weights": None, "settings": {"seed": settings.seed}}, loaded).to(place)

    return make


class _Progress:
    """Rows go to the display, states to the folder, for a small part of the time; save: None where there is none."""

    def __init__(self, display: Display, interrupts: Interrupts, save: Callable[[dict[str, Any]], None] | None) -> None:
        self._display, self._interrupts, self._save = display, interrupts, save
        self._not_before = 0.0

    def row(self, row: dict[str, Any]) -> None:
        self._display.row({key: value for key, value in row.items() if key not in ("epoch", "epochs", "seconds")})

    def step(self, done: int, total: int) -> None:
        self._display.step(done, total)

    def note(self, text: str) -> None:
        self._display.note(text)

    def checkpoint(self, state: Callable[[], dict[str, Any]], *, must: bool = False) -> None:
        started = time.monotonic()
        if self._save is not None and (must or started >= self._not_before):
            self._save(state())
            self._not_before = started + (time.monotonic() - started) / SAVING

    def should_stop(self) -> bool:
        return bool(self._interrupts.requested)


def _table(records: list[dict[str, Any]]) -> str:
    """The members on the front, the most accurate first, and how many there are besides."""
    front = sorted((r for r in records if r["front"]), key=lambda r: -r["validation"]["accuracy"])
    lines = ["member  validation %  nonzero %  MACs removed %  structure       settings"]
    for r in front:
        lines.append(
            f"{r['number']:>6}  {100 * r['validation']['accuracy']:>12.2f}  {100 * r['nonzero_fraction']:>9.2f}  "
            f"{100 * r['macs_removed']:>14.1f}  {'-'.join(map(str, r['structure'])):<14}  {_own_settings(r, records)}"
        )
    beaten = sum(r["status"] == FINISHED for r in records) - len(front)
    lines.append(f"best accuracy seen, unpruned or pruned: {frontiers.best_accuracy(records):.2%}; {beaten} are beaten")
    failed = [f"member {r['number']} {r['status']}" for r in records if r["status"] != FINISHED]
    return "\n".join(lines + failed)


def _own_settings(record: Mapping[str, Any], records: list[dict[str, Any]]) -> str:
    """The settings that are not the same in all members."""
    own = record["settings"]
    names = differing([one["settings"] for one in records])
    return ", ".join(f"{name} {json.dumps(own[name])}" for name in names) or "the only settings"
