"""The command line itself: its groups of commands, `--version`, and errors without a traceback."""

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from bayesprune.artefact import ArtefactError
from bayesprune.cli import bench, compress, data, export, frontier, report, reproduce, results, robustness
from bayesprune.data import DataError
from bayesprune.export import ExportError
from bayesprune.latency import LatencyError
from bayesprune.runs import RunError
from bayesprune.turbo import DivergedError, SettingsError

EXPECTED = (ArtefactError, DataError, DivergedError, ExportError, LatencyError, RunError, SettingsError)

app = typer.Typer(
    help="Make a neural network smaller and faster, and keep what it has learned.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command("compress")(compress.compress)
app.command("evaluate")(results.evaluate)
app.command("info")(results.info)
app.command("export")(export.export)
app.command("bench")(bench.bench)
app.command("report")(report.report)
app.command("figures")(report.figures)
app.command("robustness")(robustness.robustness)
app.add_typer(data.app, name="data")
app.add_typer(frontier.app, name="frontier")
app.add_typer(reproduce.app, name="reproduce")


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"bayesprune {version('bayesprune')}")
        except PackageNotFoundError:
            typer.echo("bayesprune, run from its source without being installed")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; a problem that a person can solve is one message on stderr and exit code 1."""
    try:
        app()
    except EXPECTED as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(1) from None
