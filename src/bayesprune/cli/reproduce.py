"""The commands `bayesprune reproduce ...`: the paper's experiments again."""

import functools
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bayesprune import baselines, data, models
from bayesprune.baselines import BaselineSettings
from bayesprune.cli.job_runner import RunOptions, carry_out
from bayesprune.cli.networks import device_by_name, runtimes_of
from bayesprune.latency import RUNTIMES
from bayesprune.reproduce import (
    CONFIGS,
    METHODS,
    PROTOCOLS,
    ROWS,
    MethodJob,
    Row,
    RowFiles,
    StudyJob,
    gradient_study,
    jobs,
    study_plan,
    study_report,
    table2_report,
    write_results_page,
)
from bayesprune.reproduce.acceleration import (
    CHOICES,
    FEWEST_PASSES,
    SECONDS,
    acceleration,
    entry_path,
    entry_standing,
    kept_networks,
    merge_entries,
    parts_folder,
    place_name,
    remove_parts,
    times,
    way_of,
    with_earlier,
    write_entry,
)
from bayesprune.reproduce.convergence import (
    ITERATIONS,
    SETTINGS,
    ConvergenceFiles,
    StartRunner,
    convergence_jobs,
    convergence_report,
    expected_jobs,
)
from bayesprune.reproduce.merging import Rows, seeds_of
from bayesprune.reproduce.study import IDENTITY
from bayesprune.runs import RunError
from bayesprune.runs.atomic import write_atomically
from bayesprune.runs.plain_json import read_json, to_json

SIGMAS = (0.003, 0.01, 0.03, 0.1)
STUDY_ROWS = ("lenet5", "vgg11", "digits")


def _configs(files: str) -> Any:
    """The option for a folder of settings."""
    return typer.Option(help=f"Folder with {files}.", show_default="those of bayesprune")


app = typer.Typer(help="Run the paper's experiments again.", no_args_is_help=True)

DataDir = Annotated[Path | None, typer.Option(help="Look for the data in this folder first.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]
Seeds = Annotated[str, typer.Option(help="Whole numbers with commas between.")]
Output = Annotated[Path, typer.Option(help="Folder for the results.")]
EpochsScale = Annotated[
    float, typer.Option(help="Try it with this share of the epochs; such rows are kept apart from results.")
]
Bench = Annotated[bool, typer.Option("--bench", help="Measure the speed of every network, too.")]
Again = Annotated[bool, typer.Option("--again", help="Compute rows again that are damaged or failed.")]
AgainWithoutNetwork = Annotated[
    bool, typer.Option("--again-without-network", help="Compute finished rows again whose network was not kept.")
]
KeepStale = Annotated[
    bool, typer.Option("--keep-stale", help="Keep and show rows whose settings are not those of the configuration.")
]
Show = Annotated[bool, typer.Option("--list", help="Only show what would run, and what is finished.")]
OnlyMerge = Annotated[bool, typer.Option("--merge", help="Only write the table of the rows there are.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


@app.callback()
def _group() -> None:
    pass


@app.command("table2")
def table2(
    row: Annotated[str, typer.Option(help=f"One of {', '.join(ROWS)}; digits is to try the command out.")],
    methods: Annotated[str, typer.Option(help="Names with commas between.")] = ",".join(METHODS),
    protocols: Annotated[str, typer.Option(help="Of best, long (VGG-11 alone), paper.")] = ",".join(PROTOCOLS),
    seeds: Seeds = "0,1,2",
    data_dir: DataDir = None,
    device: Device = "auto",
    output: Output = Path("results/table2"),
    configs: Annotated[Path, _configs("ROW-ours-PROTOCOL.yaml")] = CONFIGS / "table2",
    epochs_scale: EpochsScale = 1.0,
    bench: Bench = False,
    again: Again = False,
    again_without_network: AgainWithoutNetwork = False,
    keep_stale: KeepStale = False,
    show: Show = False,
    only_merge: OnlyMerge = False,
    quiet: Quiet = False,
) -> None:
    """Train, prune, fine-tune and evaluate every method of a row of Table II, for several seeds.

    Each finished job is two files in OUTPUT/rows/ROW, its figures and its network; stopped, the same command goes on
    with the first that is missing (with `ours` in the epoch where it was; a baseline begins anew).  All of them make
    ROW.json, ROW.md and ROW.png.  Several such commands may run at once, each network is trained by one of them;
    --merge then makes the table of all of them.  A row whose settings are not those of the configuration any more is
    stale: it is computed again, and --merge leaves it out.  To compute a finished row again, remove its file.

    Example: bayesprune reproduce table2 --row digits --methods unpruned,ours,snip --seeds 0 --epochs-scale 0.1
    """
    chosen = _row(row, tuple(ROWS))

    def expected(rows: Rows) -> list[MethodJob]:
        known = [one for one in PROTOCOLS if any(found["protocol"] == one for found in rows)]
        return jobs(chosen, METHODS, known, seeds_of(rows), configs, epochs_scale=epochs_scale)

    work = jobs(chosen, _words(methods), _words(protocols), _seeds(seeds), configs, epochs_scale=epochs_scale)
    files = RowFiles(output, row, epochs_scale, identity=("protocol",))
    options = RunOptions(device, data_dir, bench, again, again_without_network, keep_stale, show, only_merge, quiet)
    carry_out(work, files, table2_report(chosen, epochs_scale=epochs_scale), expected, options)


@app.command("regularity")
def regularity(
    row: Annotated[str, typer.Option(help=f"One of {', '.join(STUDY_ROWS)}; digits is to try the command out.")],
    settings: Annotated[str | None, typer.Option(help="Names with commas between; by default all.")] = None,
    seeds: Seeds = "0",
    data_dir: DataDir = None,
    device: Device = "auto",
    output: Output = Path("results/regularity"),
    configs: Annotated[Path, _configs("ROW/NAME.yaml")] = CONFIGS / "regularity",
    epochs_scale: EpochsScale = 1.0,
    bench: Bench = False,
    again: Again = False,
    again_without_network: AgainWithoutNetwork = False,
    keep_stale: KeepStale = False,
    show: Show = False,
    only_merge: OnlyMerge = False,
    quiet: Quiet = False,
) -> None:
    """Measure what p01 and p10, couplings and groups do to clusters, gaps, accuracy and nonzeros (paper II-B).

    Every file CONFIGS/ROW/NAME.yaml is a setting: `title`, optionally `preset`, and any settings of `compress`;
    base.yaml holds what all of them begin with.  Rows are kept, continued, shared among processes and merged as by
    table2.

    Example: bayesprune reproduce regularity --row digits --epochs-scale 0.1
    """
    chosen = _row(row, STUDY_ROWS)
    names = None if settings is None else _words(settings)
    plan = study_plan(chosen, names, _seeds(seeds), configs, epochs_scale=epochs_scale)

    def expected(rows: Rows) -> list[StudyJob]:
        return study_plan(chosen, None, seeds_of(rows), configs, epochs_scale=epochs_scale).jobs

    for name, reason in plan.waiting.items():
        typer.echo(f"waits      {name}: {reason}")
    files = RowFiles(output, row, epochs_scale, identity=IDENTITY)
    options = RunOptions(device, data_dir, bench, again, again_without_network, keep_stale, show, only_merge, quiet)
    carry_out(plan.jobs, files, study_report(chosen, epochs_scale=epochs_scale), expected, options)


@app.command("acceleration")
def acceleration_command(
    row: Annotated[str, typer.Option(help=f"One of {', '.join(ROWS)}; digits is to try the command out.")],
    device: Device = "auto",
    methods: Annotated[str, typer.Option(help="Names with commas between.")] = ",".join(CHOICES),
    seed: Annotated[int, typer.Option(help="Of the networks.")] = 0,
    passes: Annotated[int, typer.Option(help="Fewest forward passes of a network in a way.")] = FEWEST_PASSES,
    seconds: Annotated[float, typer.Option(help="Time for a network in a way; the passes are made anyhow.")] = SECONDS,
    batch: Annotated[int | None, typer.Option(help="Examples of a pass; by default the paper's number.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads on the CPU; by default all.")] = None,
    runtimes: Annotated[
        str | None,
        typer.Option(
            help=f"Of {', '.join(RUNTIMES)}, with commas between; by default all that fit the device and are "
            "installed, but for compile.",
            show_default=False,
        ),
    ] = None,
    tf32: Annotated[
        bool, typer.Option("--tf32", help="On a GPU, let all use TF32, as torch's convolutions do by default.")
    ] = False,
    networks: Annotated[Path, typer.Option(help="Folder of the results of table2.")] = Path("results/table2"),
    keep_others: Annotated[
        bool,
        typer.Option("--keep-others", help="Keep what is there of networks that are not measured now; it is marked."),
    ] = False,
    output: Output = Path("results/acceleration"),
    epochs_scale: EpochsScale = 1.0,
    show: Show = False,
    only_merge: OnlyMerge = False,
    quiet: Quiet = False,
) -> None:
    """Measure how much faster the kept networks of a row of Table II run than the dense one (paper Fig. 9).

    Networks of the protocol best; every one in its best way to run, the dense one too.  Writes ROW-DEVICE.json, .md
    and .png (with --tf32 ROW-DEVICE-tf32) in OUTPUT, and OUTPUT.json, .md and .png of all that is there.  Stopped, the
    same command goes on with the first way that is missing.

    Example: bayesprune reproduce acceleration --row digits --device cpu --threads 1
    """
    chosen, place = _row(row, tuple(ROWS)), device_by_name(device)
    rounded = tf32 and place.type == "cuda"
    where = place_name(place.type, tf32=rounded)
    if not only_merge:
        files = RowFiles(networks, row, epochs_scale, identity=("protocol",))
        kept = kept_networks(files, _words(methods), seed, epochs_scale=epochs_scale)
        for one in kept.networks:
            typer.echo(f"kept       {one.method}: {one.path}")
        for method, reason in kept.left_out.items():
            typer.echo(f"left out   {method}: {reason}")
        if show:
            path = entry_path(output, row, where, epochs_scale)
            typer.echo(f"{entry_standing(path, kept):10} {path}")
            return
        entry = acceleration(
            chosen,
            kept,
            place,
            runtimes=_words(runtimes) if runtimes is not None else runtimes_of(place),
            batch=batch,
            passes=passes,
            seconds=seconds,
            threads=threads,
            tf32=rounded,
            folder=parts_folder(output, row, where, epochs_scale),
            tell=lambda text: None if quiet else typer.echo(text),
        )
        before = entry_path(output, row, where, epochs_scale)
        if keep_others and before.exists():
            entry = with_earlier(entry, read_json(before))
        for path in write_entry(entry, output):
            typer.echo(f"written    {path}")
        for name, one in entry["methods"].items():
            typer.echo(f"{times(one)} times as fast: {name} in {way_of(one['best'])}")
    merged = merge_entries(output)
    if only_merge and not merged:
        raise RunError(f"{output} holds no measurement yet; run without --merge first")
    for path in merged:
        typer.echo(f"written    {path}")
    if not only_merge:
        remove_parts(parts_folder(output, row, where, epochs_scale))


@app.command("convergence")
def convergence(
    row: Annotated[list[str], typer.Option(help=f"One of {', '.join(ROWS)}; may be repeated.")],
    settings: Annotated[
        str | None, typer.Option(help=f"Of {', '.join(SETTINGS)}, with commas between; by default all.")
    ] = None,
    starts: Annotated[int, typer.Option(min=1, help="Random starts of every setting.")] = 3,
    iterations: Annotated[int, typer.Option(help="Outer iterations.")] = ITERATIONS,
    steps: Annotated[
        int | None, typer.Option(help="Training steps of an outer iteration; by default those of an epoch.")
    ] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    output: Output = Path("results/convergence"),
    configs: Annotated[Path, _configs("ROW-ours-best.yaml")] = CONFIGS / "table2",
    again: Again = False,
    keep_stale: KeepStale = False,
    show: Show = False,
    only_merge: OnlyMerge = False,
    quiet: Quiet = False,
) -> None:
    """Measure in which outer iteration the messages settle, from several random starts (paper Fig. 10 and Fig. 11).

    All starts begin with one warm network, which is trained once.  Each is a file in OUTPUT/rows/ROW; stopped, the same
    command goes on with the first that is missing.  All of them make ROW.json, ROW.md, ROW.png and ROW-messages.png.
    Other numbers of iterations or steps are trials, and kept apart.

    Example: bayesprune reproduce convergence --row digits --starts 2 --iterations 5
    """
    names = None if settings is None else _words(settings)
    options = RunOptions(device, data_dir, False, again, False, keep_stale, show, only_merge, quiet)
    for chosen in [_row(one, tuple(ROWS)) for one in row]:
        files = ConvergenceFiles(output, chosen.name, iterations, steps)
        carry_out(
            convergence_jobs(chosen, names, range(starts), configs, iterations=iterations, steps=steps),
            files,
            convergence_report(chosen),
            functools.partial(expected_jobs, chosen, configs, iterations, steps),
            options,
            StartRunner(files.warm),
        )
    if not show and find_spec("matplotlib") is None:
        typer.echo("left out   the pictures: matplotlib is missing; with it, --merge makes them from the JSON")


@app.command("page")
def page(
    results: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results"),
    docs: Annotated[Path, typer.Option(help="Folder of the documentation.")] = Path("docs"),
) -> None:
    """Write DOCS/results.md from all results that are there, with the remarks in DOCS/remarks."""
    for path in write_results_page(results, docs):
        typer.echo(f"written    {path}")


def _row(name: str, known: Sequence[str]) -> Row:
    if name not in known:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(known)}", param_hint="--row")
    return ROWS[name]


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
    data_dir: DataDir = None,
    device: Device = "auto",
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
