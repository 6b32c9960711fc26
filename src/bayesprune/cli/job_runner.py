"""Run the jobs of a study one after the other, beside other processes that do the same."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from bayesprune import data
from bayesprune.cli.compress import KEEPS_UNITS, STOPPED
from bayesprune.cli.networks import device_by_name
from bayesprune.data import DataSet
from bayesprune.reproduce import ClaimedError, Job, Progress, Report, RowFiles, Standing, State, merge, run_job
from bayesprune.reproduce.merging import Rows
from bayesprune.runs import Display, Interrupts, RunError
from bayesprune.turbo import Interrupted


@dataclass(frozen=True)
class RunOptions:
    """What the commands of all studies can be asked for."""

    device: str
    data_dir: Path | None
    bench: bool
    again: bool
    again_without_network: bool
    keep_stale: bool
    show: bool
    only_merge: bool
    quiet: bool

    def must_run(self, standing: Standing) -> bool:
        """Whether a job is to be computed."""
        return standing.must_run(
            again=self.again, keep_stale=self.keep_stale, again_without_network=self.again_without_network
        )


def carry_out(
    work: Sequence[Job],
    files: RowFiles,
    report: Report,
    expected: Callable[[Rows], Iterable[Job]],
    options: RunOptions,
    runner: Callable[..., dict[str, Any]] | None = None,
) -> None:
    """List the jobs, or run what is not finished and merge all rows; expected: see `merge`.

    runner: called as `run_job`, which is the usual one.
    """
    if options.show:
        typer.echo(_listing(work, files, options))
        return
    if not options.only_merge:
        _run(work, files, options, runner or run_job)
    merged = merge(report, files, expected=expected, keep_stale=options.keep_stale)
    for name, reason in merged.stale.items():
        typer.echo(f"{'kept though stale' if options.keep_stale else 'left out, stale'}: {name} ({reason})")
    for path in merged.written:
        typer.echo(f"written    {path}")


def _run(work: Sequence[Job], files: RowFiles, options: RunOptions, runner: Callable[..., dict[str, Any]]) -> None:
    """Run what is not finished; every row is written at once, and what others do or have done is left to them."""
    marks = files.marks()
    todo = _to_do(work, files, options)
    if not todo:
        return
    place = device_by_name(options.device)
    loaded: tuple[tuple[float, int], DataSet] | None = None
    done = 0
    with Display(sum(job.epochs for job in todo), quiet=options.quiet) as display, Interrupts() as interrupts:
        display.note(f"{len(todo)} of {len(work)} networks to train")
        for number, job in enumerate(todo, start=1):
            if interrupts.requested:
                _stop(display, done, len(todo))
            split = (job.settings.validation, job.seed)
            if loaded is None or loaded[0] != split:
                loaded = (
                    split,
                    data.load(job.row.data, options.data_dir, validation=split[0], seed=split[1], device=place),
                )
            progress = Progress(display, interrupts, job, number, len(todo), files.state(job))
            try:
                with files.claim(job), warnings.catch_warnings():
                    if files.marks().get(job.name) != marks.get(job.name):
                        display.note(f"{job.name}: finished by another process")
                        continue
                    warnings.filterwarnings("ignore", KEEPS_UNITS)
                    result = runner(
                        job,
                        loaded[1],
                        recorder=progress,
                        bench=options.bench,
                        keep=files.network(job),
                        resume=progress.resume(),
                    )
                    files.write(job, result)
                    progress.done()
            except Interrupted:
                _stop(display, done, len(todo))
            except ClaimedError as error:
                display.note(f"{job.name}: left out, {error}")
                continue
            done += 1
            display.note(f"{job.name}: {_in_words(result)}")


def _to_do(work: Sequence[Job], files: RowFiles, options: RunOptions) -> list[Job]:
    """The jobs to run; what is not as it should be and stays is said, what is damaged is an error."""
    todo = []
    for job in work:
        standing = files.standing(job)
        if options.must_run(standing):
            todo.append(job)
        elif standing.state is State.DAMAGED:
            raise RunError(standing.reason)
        elif standing.state is not State.FINISHED:
            remedy = "without --keep-stale it" if standing.state is State.STALE else "--again"
            typer.echo(f"kept       {job.name}: {standing.state.value} ({standing.reason}); {remedy} computes it again")
    return todo


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


def _listing(work: Sequence[Job], files: RowFiles, options: RunOptions) -> str:
    """What would run, what stays, and why."""
    lines, epochs, count = [], 0, 0
    for job in work:
        standing = files.standing(job)
        runs = options.must_run(standing)
        reason = f" ({standing.reason})" if standing.reason else ""
        lines.append(
            f"{'runs ' if runs else 'stays'}  {job.epochs:4} epochs  {job.name}: {standing.state.value}{reason}"
        )
        epochs, count = epochs + runs * job.epochs, count + runs
    return "\n".join([*lines, f"{count} of {len(work)} networks to train, {epochs} epochs"])
