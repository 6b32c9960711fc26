"""The commands `bayesprune data ...`: which data sets there are, and getting those that are not."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from bayesprune.data import (
    DATA_SETS,
    DataError,
    fetch,
    file_spec,
    find_source,
    missing_files,
    read,
    search_folders,
)
from bayesprune.data.contents import fetch_command
from bayesprune.data.registry import DIGITS
from bayesprune.data.spec import RawPart

app = typer.Typer(
    help="See which data sets are on this machine, and download those that are not.\n\n"
    f"NAME is one of {', '.join(DATA_SETS)}.\n\n"
    "They are looked for in --data-dir, then in the folder $BAYESPRUNE_DATA, then in your cache folder. "
    "Nothing is ever downloaded unless you run 'fetch'.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
INTERRUPTED = 130  # what shells report for Ctrl-C


def _known(name: str) -> str:
    if name not in DATA_SETS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(DATA_SETS)}")
    return name


Name = Annotated[str, typer.Argument(callback=_known, show_default=False, help="One of " + ", ".join(DATA_SETS) + ".")]
SearchFirst = Annotated[Path | None, typer.Option(help="Look in this folder first.", show_default=False)]
PutInto = Annotated[
    Path | None,
    typer.Option(help="Put it here; else in $BAYESPRUNE_DATA or your cache folder.", show_default=False),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(help="Download from this mirror instead of the publisher.", show_default=False),
]


@app.command("list")
def list_data_sets(data_dir: SearchFirst = None) -> None:
    """Show every data set: is it here, is it complete, and where.

    All files are read and checked, so "ready" means that loading will work.
    """
    for name in DATA_SETS:
        state, remark = _state(name, data_dir)
        typer.echo(f"{name:<15}{state:<12}{remark}")
    typer.echo("searched: " + ", ".join(str(folder) for folder in search_folders(data_dir)))


@app.command("info")
def show_data_set(name: Name, data_dir: SearchFirst = None) -> None:
    """Show what is in a data set: sizes, numbers of examples, names of the classes, where it was found.

    NAME is one of digits, fashion-mnist, cifar10, cifar100.
    """
    reading = read(name, data_dir)
    raw = reading.raw
    channels, height, width = raw.train.images.shape[1:]
    typer.echo(f"{name}: {'handwritten digits' if name == DIGITS else file_spec(name).title}")
    typer.echo(f"  found in  {reading.source}")
    values = f"values {raw.train.images.min()} to {raw.train.images.max()}"
    typer.echo(f"  images    {channels} x {height} x {width} (channels x height x width), {values}")
    typer.echo(f"  training  {_counts(raw.train)}")
    typer.echo(f"  test      {_counts(raw.test)}")
    typer.echo(f"  classes   {len(raw.classes)}: {', '.join(raw.classes)}")


@app.command("fetch")
def fetch_data_set(name: Name, data_dir: PutInto = None, base_url: BaseUrl = None) -> None:
    """Download a data set, check it, and put it where bayesprune finds it.

    NAME is one of fashion-mnist, cifar10, cifar100; digits needs no download.

    What is already there and right is not downloaded again.  You can stop at any time with Ctrl-C: a file
    gets its name only when it is complete and its checksum is right.
    """
    if name == DIGITS:
        typer.echo("digits comes with scikit-learn: it is already there")
        return
    try:
        folder = fetch(name, data_dir, base_url=base_url)
    except KeyboardInterrupt:
        typer.echo("stopped; no unfinished file was left behind", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(f"{name} is complete in {folder}")


def _state(name: str, data_dir: Path | None) -> tuple[str, str]:
    """Return the state of a data set in one word, and where it is or what to do."""
    remedy = f"run: {fetch_command(name, data_dir)}"
    if name != DIGITS:
        spec = file_spec(name)
        folders = search_folders(data_dir)
        if not any(find_source(spec, folder) for folder in folders):
            for folder in folders:
                missing = missing_files(spec, folder)
                if len(missing) < len(spec.files):
                    return "incomplete", f"{folder / spec.folder} lacks {', '.join(missing)}; {remedy}"
            return "missing", remedy
    try:
        return "ready", read(name, data_dir).source
    except DataError as error:
        return "damaged", str(error)


def _counts(part: RawPart) -> str:
    """Return the number of examples and how they are spread over the classes, in words."""
    counts = np.bincount(part.labels)
    low, high = counts.min(), counts.max()
    return f"{len(part.labels)} examples, {low if low == high else f'{low} to {high}'} per class"
