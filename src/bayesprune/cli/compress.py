"""The command `bayesprune compress`: from a network and data to a smaller network in a run folder."""

import contextlib
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
import yaml

from bayesprune import data, models
from bayesprune.artefact import STORAGES
from bayesprune.cli.finishing import finish
from bayesprune.cli.networks import device_by_name, network_of_plan
from bayesprune.cli.words import in_words
from bayesprune.runs import (
    Display,
    Interrupts,
    RunError,
    RunFolder,
    load_newest,
    new_folder,
    read_config,
    read_history,
    run_folder,
)
from bayesprune.runs.folder import NETWORK
from bayesprune.surgery import ProofError
from bayesprune.turbo import PRESETS, CollapsedError, FolderRecorder, Interrupted, Settings, SettingsError
from bayesprune.turbo import compress as compress_network
from bayesprune.turbo.parallel import RanksDisagreeError, World, join_world, leave_world

STOPPED = 130  # what shells report for Ctrl-C
KEEPS_UNITS = "parts of the network keep their units"  # how the warning of `structure.trace` begins
DEFAULT_DROP = 0.5  # points of validation accuracy, where nothing else is asked for


def compress(
    model: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(models.MODELS)}; lenet5 unless --config says.")
    ] = None,
    data_set: Annotated[
        str | None, typer.Option("--data", help=f"One of {', '.join(data.DATA_SETS)}; digits unless --config says.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with any of model, data and settings.")] = None,
    preset: Annotated[str | None, typer.Option(help=f"Named settings: {', '.join(PRESETS)}.")] = None,
    max_accuracy_drop: Annotated[
        float | None, typer.Option(help="Points of validation accuracy that may be lost.")
    ] = None,
    target_macs: Annotated[float | None, typer.Option(help="Fraction of MACs to keep, such as 0.25.")] = None,
    target_nonzero: Annotated[float | None, typer.Option(help="Fraction of weights to keep, such as 0.01.")] = None,
    seed: Annotated[int | None, typer.Option(help="Draws the weights, the order of examples and the split.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting, NAME=VALUE; may be repeated.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="A trained network (.safetensors); warm-up is then skipped.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run folder; by default the next free one.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder that holds the run folders.")] = Path("runs"),
    resume: Annotated[Path | None, typer.Option(help="Go on with this run folder; nothing else is needed.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Look for the data in this folder first.")] = None,
    round_widths: Annotated[
        bool,
        typer.Option(
            "--round-widths",
            help="Keep dead units until widths are multiples of 8 or 16, if that measures faster on this machine.",
        ),
    ] = False,
    storage: Annotated[
        str, typer.Option(help="Weights in the file: clusters (packed), dense (for any reader), or auto.")
    ] = "auto",
    no_bench: Annotated[
        bool, typer.Option("--no-bench", help="Do not measure the speed at the end, which takes some seconds.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Train, compress and fine-tune a network, and leave everything in a run folder.

    The result is network.safetensors in it: a plain, smaller network, proven to compute the same as the compressed one
    with its zeros.  Load it with bayesprune.load, or see: bayesprune evaluate, info, export, bench.

    Without further options the strengths of the priors grow until half a point of validation accuracy is lost, and
    photographs (cifar10, cifar100) are mirrored and shifted at random while training (--set augment=false).  Give a
    budget (--max-accuracy-drop, --target-macs, --target-nonzero) to ask for something else, or --config for an
    experiment with fixed strengths.

    Press Ctrl-C to stop: the run is saved and goes on with --resume.  It also survives being killed.

    Example: bayesprune compress --model lenet5 --data digits
    """
    place = device_by_name(device)
    world = join_world(place)
    try:
        folder = resume or _plan(
            *(model, data_set, config, preset, setting, weights, name, runs, data_dir, round_widths, storage, world),
            given={
                "max_accuracy_drop": max_accuracy_drop,
                "target_macs": target_macs,
                "target_nonzero": target_nonzero,
                "seed": seed,
            },
        )
        _go_on(folder, place, data_dir, quiet, world, bench=not no_bench)
    finally:
        leave_world(world)


def _plan(
    model: str | None,
    data_set: str | None,
    config: Path | None,
    preset: str | None,
    setting: list[str] | None,
    weights: Path | None,
    name: str | None,
    runs: Path,
    data_dir: Path | None,
    round_widths: bool,
    storage: str,
    world: World,
    given: dict[str, Any],
) -> Path:
    """Check what was asked for and make its run folder; the other processes learn its name."""
    if storage not in STORAGES:
        raise typer.BadParameter(f"{storage!r} is not one of {', '.join(STORAGES)}", param_hint="--storage")
    resolved = resolve(config, preset, setting)
    resolved |= {k: v for k, v in given.items() if v is not None}
    chosen_model = model or resolved.pop("model", None) or "lenet5"
    chosen_data = data_set or resolved.pop("data", None) or "digits"
    resolved.pop("model", None)
    resolved.pop("data", None)
    budgets = ("max_accuracy_drop", "target_macs", "target_nonzero")
    if config is None and preset is None and all(resolved.get(b) is None for b in budgets):
        resolved["max_accuracy_drop"] = DEFAULT_DROP
    if config is None and preset is None:
        resolved.setdefault("augment", chosen_data in data.PHOTOGRAPHS)
    if weights is not None:
        resolved["warmup_epochs"] = 0
    settings = Settings.from_dict(resolved)
    if chosen_model not in models.MODELS:
        raise typer.BadParameter(f"{chosen_model!r} is not one of {', '.join(models.MODELS)}", param_hint="--model")
    if chosen_data not in data.DATA_SETS:
        raise typer.BadParameter(f"{chosen_data!r} is not one of {', '.join(data.DATA_SETS)}", param_hint="--data")
    if settings.batch_size % world.size:
        raise SettingsError(f"batch_size {settings.batch_size} must be a multiple of the {world.size} processes")
    # An error about the data or the weights comes before a folder is made.
    loaded = data.load(chosen_data, data_dir, validation=settings.validation, seed=settings.seed)
    if not any(name in resolved for name in ("warmup_epochs", "prune_epochs", "finetune_epochs")):
        settings = settings.for_examples(len(loaded.train))
    plan: dict[str, Any] = {
        "model": chosen_model,
        "data": chosen_data,
        "weights": str(weights.resolve()) if weights else None,
        "settings": settings.as_dict(),
        "round_widths": round_widths,
        "storage": storage,
    }
    network_of_plan(plan, loaded)

    def make() -> str:
        folder = run_folder(name, runs) if name else new_folder(chosen_model, chosen_data, runs)
        RunFolder.create(folder, plan).close()
        return str(folder)

    return Path(world.from_first(make))


def resolve(config: Path | None, preset: str | None, setting: list[str] | None) -> dict[str, Any]:
    """Preset, then file, then --set, later ones winning."""
    resolved: dict[str, Any] = {}
    if preset is not None:
        if preset not in PRESETS:
            raise typer.BadParameter(f"{preset!r} is not one of {', '.join(PRESETS)}", param_hint="--preset")
        resolved |= PRESETS[preset]
    if config is not None:
        try:
            loaded = yaml.safe_load(config.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise typer.BadParameter(f"cannot read {config}: {error}", param_hint="--config") from error
        if not isinstance(loaded, dict):
            raise typer.BadParameter(f"{config} must hold `name: value` lines", param_hint="--config")
        resolved |= loaded
    for item in setting or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise typer.BadParameter(f"{item!r} is not NAME=VALUE", param_hint="--set")
        try:
            resolved[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise typer.BadParameter(f"cannot read the value of {item!r}: {error}", param_hint="--set") from error
    return resolved


def _go_on(folder: Path, place: torch.device, data_dir: Path | None, quiet: bool, world: World, *, bench: bool) -> None:
    """Run a compression from where its folder stands to its summary."""
    with RunFolder.open(folder) if world.writes else contextlib.nullcontext() as run:
        plan = read_config(folder)
        settings = Settings.from_dict(plan["settings"])
        data_of_run = data.load(
            plan["data"], data_dir, validation=settings.validation, seed=settings.seed, device=place
        )
        state, history = _where_it_stands(folder, run, world)
        network = network_of_plan(plan | {"weights": None} if state else plan, data_of_run).to(place)
        torch.manual_seed(settings.seed)
        epochs = settings.warmup_epochs + settings.prune_epochs + settings.finetune_epochs
        silent = quiet or not world.writes
        with (
            Display(epochs, quiet=silent, start_epoch=len(history)) as display,
            Interrupts() as interrupts,
            warnings.catch_warnings(),
        ):
            display.note(f"{plan['model']} on {plan['data']}, {len(data_of_run.train)} examples, run folder {folder}")
            recorder = FolderRecorder(run, display, interrupts)
            warnings.filterwarnings("ignore", KEEPS_UNITS)  # the summary has it as a note
            try:
                result = compress_network(
                    network,
                    data_of_run,
                    settings=settings,
                    recorder=recorder,
                    resume=(state, history) if state else None,
                    world=world,
                )
            except Interrupted:
                display.note(f"stopped and saved; go on with: bayesprune compress --resume {folder}")
                raise typer.Exit(STOPPED) from None
            except ProofError as error:
                raise _not_proven(error, folder) from error
            except (CollapsedError, RanksDisagreeError) as error:
                raise RunError(str(error)) from error
            except RuntimeError as error:
                if world.size == 1 or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
                    raise
                reason = str(error).split(". ")[0].splitlines()[0]
                raise RunError(
                    f"another process of this run has ended ({reason}); nothing was lost, go on with the same torchrun "
                    f"command and: compress --resume {folder}"
                ) from error
        if run is not None:
            if bench and not quiet:
                typer.echo("measuring how fast the smaller network is beside the dense one (--no-bench leaves it out)")
            try:
                rounding = bool(plan.get("round_widths"))
                summary = finish(run, plan, data_of_run, result, bench=bench, rounding=rounding)
            except ProofError as error:
                raise _not_proven(error, folder) from error
            except KeyboardInterrupt:
                typer.echo(f"stopped; go on with: bayesprune compress --resume {folder}")
                raise typer.Exit(STOPPED) from None
            typer.echo(in_words(summary))
            typer.echo(f"network    {folder / NETWORK}")
            typer.echo(f"everything is in {folder}")


def _not_proven(error: ProofError, folder: Path) -> RunError:
    return RunError(
        f"the smaller network was not proven equal to the compressed one: {error}; nothing was written as finished, "
        f"the compressed network stays in the checkpoint of {folder}"
    )


def _where_it_stands(
    folder: Path, run: RunFolder | None, world: World
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The last checkpoint and the history up to it, the same for all processes."""
    state = run.load_checkpoint() if run is not None else None
    if run is not None:
        run.rewind(state["rows"] if state else 0)
    world.from_first(lambda: "rewound")
    if run is None:
        state, _ = load_newest(folder)
    return state, read_history(folder)[: state["rows"] if state else 0]
