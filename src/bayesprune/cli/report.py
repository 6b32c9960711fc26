"""The commands `bayesprune report` and `bayesprune figures`: what a run did, for people."""

from pathlib import Path
from typing import Annotated

import typer

from bayesprune import report as reports
from bayesprune.runs.atomic import remove_temporary_files, write_atomically
from bayesprune.runs.disk_errors import starting

Sources = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Run folders, frontier folders, or the files of networks, such as network.safetensors.",
        show_default=False,
    ),
]


def report(
    sources: Sources,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path("report.html"),
) -> None:
    """Write a report that a browser opens, as one file that loads nothing from elsewhere.

    It says how much smaller and faster the network is, and shows its layers, weights, clusters, messages, training,
    speed and storage.  Several runs are compared.  What a run does not hold is left out, and said.

    Example: bayesprune report runs/lenet5-digits-1 -o report.html
    """
    runs, frontiers = reports.read_sources(sources)
    content = reports.render(runs, frontiers).encode()
    with starting(output):
        remove_temporary_files(output)
        write_atomically(output, [content])
    typer.echo(f"report     {output}, {len(content):,} bytes")


def figures(
    sources: Sources,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for the figures.")] = Path("figures"),
    formats: Annotated[
        str, typer.Option("--format", help=f"Of {', '.join(reports.FORMATS)}, separated by commas.")
    ] = ",".join(reports.FORMATS),
) -> None:
    """Write every figure of the report as a file of its own; needs matplotlib.

    Example: bayesprune figures runs/lenet5-digits-1 -o figures --format svg
    """
    wanted = tuple(dict.fromkeys(one.strip() for one in formats.split(",")))
    for one in wanted:
        if one not in reports.FORMATS:
            raise typer.BadParameter(f"{one!r} is not one of {', '.join(reports.FORMATS)}", param_hint="--format")
    found = reports.drawings(*reports.read_sources(sources))
    try:
        with starting(output):
            written = reports.write_figures(found, output, wanted)
    except ImportError as error:
        raise typer.BadParameter(str(error), param_hint="figures") from error
    typer.echo(f"figures    {len(written)} files in {output}")
