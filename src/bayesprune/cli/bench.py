"""The command `bayesprune bench`: how fast the smaller network is beside the dense one."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from bayesprune.cli.networks import device_by_name, runtimes_of
from bayesprune.cli.results import RunOrFile
from bayesprune.cli.sources import Source, open_source
from bayesprune.latency import RUNTIMES, measure
from bayesprune.runs import RunError
from bayesprune.runs.atomic import remove_temporary_files, write_atomically
from bayesprune.runs.disk_errors import starting
from bayesprune.runs.plain_json import to_json
from bayesprune.surgery.proof import outputs

BENCH = "bench.json"
WIDTH = 78  # of the line that shows progress


def bench(
    source: RunOrFile,
    dense: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The file of the dense network to compare with, written by artefact.save; it must take the same "
            "inputs and give as many outputs.  By default the run's own before pruning.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(help="A batch size; may be repeated.  [default: 1, 256]")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(help="Threads on the CPU; by default all.  1 gives the steadiest times.")
    ] = None,
    runtimes: Annotated[
        str | None,
        typer.Option(
            help=f"Of {', '.join(RUNTIMES)}, separated by commas.  By default all that fit the device and are "
            "installed, but for compile: compiling takes up to a minute per network and batch size.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time per network, runtime and batch size.")] = 1.0,
    multiple: Annotated[
        list[int] | None,
        typer.Option(
            help="Measure the network of a run with its widths rounded up to this multiple as well, by keeping dead "
            "units; may be repeated.  16 can pay in ONNX Runtime on the CPU."
        ),
    ] = None,
    tf32: Annotated[
        bool,
        typer.Option(
            "--tf32",
            help="On a GPU, let all of them multiply with ten bits of mantissa, as torch does in convolutions unless "
            "told otherwise.  By default exact float32.",
        ),
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="The JSON file with all times; by default beside the network.")
    ] = None,
) -> None:
    """Measure how much faster the smaller network is than the dense one.

    Both run in turns on the same inputs, so that whatever slows this machine down slows both; the best way to run the
    one is compared with the best way to run the other.  Where there is no gain, the reason is given.

    The dense network of a run is the run's own before pruning; that of a file is a new one of the same name, where
    it has one.  --dense names another.

    Example: bayesprune bench runs/lenet5-digits-1 --batch 1 --batch 64 --threads 1
    """
    found = open_source(source)
    place = device_by_name(device)
    shrunk = found.network()
    whole, what = found.dense() if dense is None else _dense_in_file(dense, found, shrunk)
    typer.echo(what if whole is not None else f"{what}; name it with --dense FILE")
    networks = {"shrunk": shrunk} if whole is None else {"dense": whole, "shrunk": shrunk}
    networks |= {f"shrunk x{one}": found.rounded(one) for one in dict.fromkeys(multiple or ())}
    with _progress() as progress:
        latency = measure(
            networks,
            found.example,
            batches=tuple(batch or (1, 256)),
            device=place,
            threads=threads,
            runtimes=_runtimes(runtimes, place),
            seconds=seconds,
            tf32=tf32,
            progress=progress,
        )
    typer.echo(latency.table())
    typer.echo(latency.in_words())
    path = output or _beside(found)
    content = {"model": found.text("model"), "dense": what, **latency.as_dict()}
    with starting(path):
        remove_temporary_files(path)
        write_atomically(path, [to_json(content, path, indent=2).encode() + b"\n"])
    typer.echo(f"all times are in {path}")


def _dense_in_file(path: Path, found: Source, shrunk: nn.Module) -> tuple[nn.Module, str]:
    """The network in an artefact, and what it is, in words; RunError unless it can stand beside the smaller one."""
    if not path.is_file():
        raise RunError(f"--dense must be the file of a network, got {path}, {_what_is_wrong(path)}")
    other = open_source(path)
    if other.input_shape != found.input_shape:
        raise RunError(
            f"--dense {path} takes inputs of shape {other.input_shape}, {found.path} those of shape "
            f"{found.input_shape}; give the dense network of the same task"
        )
    network = other.network()
    shapes = [[tuple(one.shape[1:]) for one in _outputs(each, found)] for each in (network, shrunk)]
    if shapes[0] != shapes[1]:
        ours, theirs = (", ".join(map(str, one)) for one in reversed(shapes))
        raise RunError(
            f"--dense {path} gives outputs of shape {theirs}, {found.path} those of shape {ours}; "
            "give the dense network of the same task"
        )
    return network, f"dense is the network in {path}"


def _what_is_wrong(path: Path) -> str:
    if path.is_dir():
        return "a folder; name the file in it, such as network.safetensors"
    return "which does not exist; write it with artefact.save(FILE, network, example_shape=...)"


def _outputs(network: nn.Module, found: Source) -> list[Tensor]:
    return outputs(network, (found.example,), torch.float32, torch.device("cpu"))


def _runtimes(given: str | None, device: torch.device) -> tuple[str, ...]:
    if given is not None:
        return tuple(dict.fromkeys(one.strip() for one in given.split(",")))
    return runtimes_of(device)


def _beside(found: Source) -> Path:
    return found.folder / BENCH if found.folder is not None else found.path.with_suffix(f".{BENCH}")


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """A line on the terminal that is gone at the end; None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return

    def show(text: str, done: int, total: int) -> None:
        sys.stderr.write(f"\r{f'{100 * done // total:3d} %  {text}'[:WIDTH]:<{WIDTH}}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r" + " " * WIDTH + "\r")
        sys.stderr.flush()
