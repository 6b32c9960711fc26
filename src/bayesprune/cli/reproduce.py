"""The commands `bayesprune reproduce ...`: the paper's experiments again."""

import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bayesprune import baselines, data, models
from bayesprune.baselines import BaselineSettings
from bayesprune.cli.compress import KEEPS_UNITS, STOPPED
from bayesprune.cli.networks import device_by_name
from bayesprune.data import DataSet
from bayesprune.reproduce import (
    METHODS,
    PROTOCOLS,
    ROWS,
    Job,
    Progress,
    RowFiles,
    Standing,
    State,
    gradient_study,
    jobs,
    merge,
    run_job,
)
from bayesprune.runs import Display, Interrupts, RunError
from bayesprune.runs.atomic import write_atomically
from bayesprune.runs.plain_json import to_json
from bayesprune.turbo import Interrupted

SIGMAS = (0.003, 0.01, 0.03, 0.1)

app = typer.Typer(help="Run the paper's experiments again.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command("table2")
def table2(
    row: Annotated[str, typer.Option(help=f"One of {', '.join(ROWS)}; digits is to try the command out.")],
    methods: Annotated[str, typer.Option(help="Names with commas between.")] = ",".join(METHODS),
    protocols: Annotated[str, typer.Option(help="best, paper, or both.")] = ",".join(PROTOCOLS),
    seeds: Annotated[str, typer.Option(help="Whole numbers with commas between.")] = "0,1,2",
    data_dir: Annotated[Path | None, typer.Option(help="Look for the data in this folder first.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    output: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results/table2"),
    configs: Annotated[Path, typer.Option(help="Folder with ROW-ours-PROTOCOL.yaml.")] = Path("configs/table2"),
    epochs_scale: Annotated[
        float, typer.Option(help="Try it with this share of the epochs; such rows are kept apart from results.")
    ] = 1.0,
    bench: Annotated[bool, typer.Option("--bench", help="Measure the speed of every network, too.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Compute rows again that are damaged, failed or have other settings.")
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="Only show what would run, and what is finished.")] = False,
    only_merge: Annotated[bool, typer.Option("--merge", help="Only write the table of the rows there are.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Train, prune, fine-tune and evaluate every method of a row of Table II, for several seeds.

    Each finished network is a file in OUTPUT/rows/ROW; stopped, the same command goes on with the first that is
    missing.  All of them make ROW.json, ROW.md and ROW.png.  Several such commands may run at once with other methods
    or seeds; --merge then makes the table of all of them.  To compute a finished row again, remove its file.

    Example: bayesprune reproduce table2 --row digits --methods unpruned,ours,snip --seeds 0 --epochs-scale 0.1
    """
    if row not in ROWS:
        raise typer.BadParameter(f"{row!r} is not one of {', '.join(ROWS)}", param_hint="--row")
    work = jobs(ROWS[row], _words(methods), _words(protocols), _seeds(seeds), configs, epochs_scale=epochs_scale)
    files = RowFiles(output, row, epochs_scale)
    standings = {job.name: files.standing(job) for job in work}
    if show:
        typer.echo(_listing(work, standings, again))
        return
    if not only_merge:
        _run(work, standings, files, device, data_dir, bench=bench, again=again, quiet=quiet)
    for path in merge(ROWS[row], files, epochs_scale=epochs_scale):
        typer.echo(f"written    {path}")


def _run(
    work: list[Job],
    standings: dict[str, Standing],
    files: RowFiles,
    device: str,
    data_dir: Path | None,
    *,
    bench: bool,
    again: bool,
    quiet: bool,
) -> None:
    """Run what is not finished, one job after the other; every row is written at once."""
    todo = [job for job in work if standings[job.name].must_run(again)]
    if not again:
        for job in work:
            standing = standings[job.name]
            if standing.state is State.DAMAGED:
                raise RunError(standing.reason)
            if standing.state in (State.OTHER_SETTINGS, State.FAILED):
                typer.echo(
                    f"kept       {job.name}: {standing.state.value} ({standing.reason}); --again computes it again"
                )
    if not todo:
        return
    place = device_by_name(device)
    loaded: tuple[tuple[float, int], DataSet] | None = None
    with Display(sum(job.epochs for job in todo), quiet=quiet) as display, Interrupts() as interrupts:
        display.note(f"{len(todo)} of {len(work)} networks to train")
        for number, job in enumerate(todo, start=1):
            if interrupts.requested:
                _stop(display, number - 1, len(todo))
            split = (job.settings.validation, job.seed)
            if loaded is None or loaded[0] != split:
                loaded = (split, data.load(job.row.data, data_dir, validation=split[0], seed=split[1], device=place))
            progress = Progress(display, interrupts, job, number, len(todo))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", KEEPS_UNITS)
                try:
                    result = run_job(job, loaded[1], recorder=progress, bench=bench)
                except Interrupted:
                    _stop(display, number - 1, len(todo))
            files.write(job, result)
            display.note(f"{job.name}: {_in_words(result)}")


def _stop(display: Display, done: int, all_of_them: int) -> None:
    display.note(f"stopped; {done} of {all_of_them} networks were finished and are kept, the same command goes on")
    raise typer.Exit(STOPPED)


def _in_words(row: dict[str, Any]) -> str:
    if row["accuracy"] is None:
        return str(row["status"])
    return (
        f"accuracy {row['accuracy']:.2%}, {row['nonzero_fraction']:.2%} nonzero, {row['macs_removed']:.1%} of MACs "
        f"removed, {row['seconds']:.0f} s"
    )


def _listing(work: list[Job], standings: dict[str, Standing], again: bool) -> str:
    lines = []
    for job in work:
        standing = standings[job.name]
        action = "runs " if standing.must_run(again) else "stays"
        reason = f" ({standing.reason})" if standing.reason else ""
        lines.append(f"{action}  {job.epochs:4} epochs  {job.name}: {standing.state.value}{reason}")
    epochs = sum(job.epochs for job in work if standings[job.name].must_run(again))
    count = sum(standings[job.name].must_run(again) for job in work)
    return "\n".join([*lines, f"{count} of {len(work)} networks to train, {epochs} epochs"])


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _seeds(text: str) -> list[int]:
    try:
        found = [int(word) for word in _words(text)]
    except ValueError:
        found = []
    if not found or min(found) < 0:
        raise typer.BadParameter(f"{text!r} is not a list of whole numbers such as 0,1,2", param_hint="--seeds")
    return list(dict.fromkeys(found))


@app.command("gradients")
def gradients(
    data_set: Annotated[str, typer.Option("--data", help="Data for LeNet-5.")] = "fashion-mnist",
    epochs: Annotated[int, typer.Option(help="Of training before the gradients are measured.")] = 10,
    samples: Annotated[int, typer.Option(help="Of the weights, for each sigma.")] = 1000,
    batch: Annotated[int, typer.Option(help="Examples that the gradients are of.")] = 128,
    seed: Annotated[int, typer.Option(help="Draws everything.")] = 0,
    data_dir: Annotated[Path | None, typer.Option(help="Look for the data in this folder first.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    output: Annotated[Path, typer.Option(help="The file to write.")] = Path("results/gradients.json"),
) -> None:
    """Measure the Monte Carlo gradient of the data term beside the deterministic one (paper III-C), on LeNet-5."""
    place = device_by_name(device)
    settings = BaselineSettings(warmup_epochs=epochs, prune_epochs=0, finetune_epochs=0, seed=seed)
    loaded = data.load(data_set, data_dir, validation=settings.validation, seed=seed, device=place)
    generator = torch.Generator().manual_seed(seed)
    network = models.create("lenet5", loaded.input_shape, len(loaded.classes), generator=generator).to(place)
    trained = baselines.train_dense(network, loaded, settings=settings)
    examples = (loaded.train.x[:batch], loaded.train.y[:batch])
    studies = [gradient_study(network, examples, sigma, samples, seed=seed) for sigma in SIGMAS]
    content = {
        "model": "lenet5",
        "data": data_set,
        "settings": settings.as_dict(),
        "accuracy": trained.summary["accuracy"],
        "studies": studies,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, [to_json(content, output, indent=1).encode() + b"\n"])
    for study in studies:
        typer.echo(
            f"sigma {study['sigma']:<6g} noise to signal {study['noise_to_signal']:.3g}, bias of the deterministic one "
            f"{study['difference'] / study['mean_norm']:.3g} of the mean, "
            f"{study['seconds_sampled'] / study['seconds_deterministic']:.2f} times its cost"
        )
    typer.echo(f"written    {output}")
