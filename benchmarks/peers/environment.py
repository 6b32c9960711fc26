"""The peers' environment: create it on demand, run a peer in it, read the result.

The peers pin versions that are none of this project's business, so they live in `.venv-peers` and are reached
through a subprocess only.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REQUIREMENTS = HERE / "requirements.txt"
NAME = ".venv-peers"
TAIL = 20  # lines of a failed command's stderr to show

Peer = Literal["sumproduct", "pgmax"]


class PeerError(RuntimeError):
    """A peer could not be installed or run; the message names the peer and the remedy."""


@dataclass(frozen=True, eq=False)
class PeerResult:
    """Marginals and times of one peer.

    `seconds` has one entry per repeat and covers the iterations and reading the marginals; building the graph
    and compiling are apart.  `cpu_seconds` is the time of all threads in the same span, `threads` how many
    the peer may use.  `sweeps` is how many of its own sweeps the peer ran for `iterations` (sumproduct: one
    more, not timed, because its first sweep only delivers the evidence).  `precision` is its marginals'.
    """

    peer: Peer
    marginals: npt.NDArray[np.float64] = field(repr=False)
    iterations: int
    sweeps: int
    build_seconds: float
    compile_seconds: float
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    precision: str
    threads: int
    versions: Mapping[str, str]

    @property
    def best(self) -> float:
        """Seconds of the fastest repeat."""
        return min(self.seconds)

    @property
    def cores_used(self) -> float:
        """Cores kept busy, averaged over all repeats."""
        return sum(self.cpu_seconds) / sum(self.seconds)


def ensure(root: Path) -> Path:
    """Create or refresh `.venv-peers` under `root` where needed and return its Python.

    Nothing happens while the environment matches `requirements.txt`.
    """
    folder = root / NAME
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = folder / "requirements.sha256"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text().strip() == wanted:
        return python

    print(
        f"creating {NAME} and installing the peers into it (about 200 MB to download)",
        file=sys.stderr,
        flush=True,
    )
    remedy = (
        f"The peers need a package index once, and Python 3.11 to 3.13 (this is {sys.version.split()[0]}). "
        f"Remove {NAME} and try again, or leave the peers out of the run."
    )
    _execute([sys.executable, "-m", "venv", "--clear", str(folder)], "the peers' environment", remedy)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    install += ["--no-deps", "--requirement", str(REQUIREMENTS)]
    _execute(install, "the peers' environment", remedy)
    stamp.write_text(wanted + "\n")
    return python


def run(
    peer: Peer,
    evidence: npt.ArrayLike,
    activity: float,
    coupling: float,
    iterations: int,
    repeats: int,
) -> PeerResult:
    """Run `iterations` of flooding sum-product on an Ising grid with `peer`, `repeats` times.

    `evidence` holds log-odds per site (K x M), logit(`activity`) is added to each; neighbours weigh
    exp(`coupling`) where equal and exp(-`coupling`) where different.
    """
    grid = np.asarray(evidence, dtype=np.float64)
    if grid.ndim != 2 or grid.size < 2 or not np.isfinite(grid).all():
        raise ValueError(f"evidence must be a finite K x M grid of two sites or more, got shape {grid.shape}")
    if not 0 < activity < 1:
        raise ValueError(f"activity must lie between 0 and 1, got {activity}")
    if iterations < 1 or repeats < 1:
        raise ValueError(f"iterations and repeats must be at least 1, got {iterations} and {repeats}")

    python = ensure(ROOT)
    with tempfile.TemporaryDirectory(prefix="bayesprune-peer-") as folder:
        problem, result = Path(folder) / "problem.npz", Path(folder) / "result.npz"
        np.savez(problem, evidence=grid, activity=activity, coupling=coupling)
        command = [str(python), "-I", str(HERE / "run_peer.py"), peer, str(problem), str(result)]
        command += ["--iterations", str(iterations), "--repeats", str(repeats)]
        remedy = f"If a package is missing or broken, remove {NAME}: the next run installs it afresh."
        _execute(command, f"peer {peer} on a {grid.shape[0]} x {grid.shape[1]} grid", remedy)
        with np.load(result) as file:
            marginals = np.asarray(file["marginals"], dtype=np.float64)
            report: dict[str, Any] = json.loads(str(file["report"]))
    return PeerResult(
        peer=peer,
        marginals=marginals,
        iterations=int(report["iterations"]),
        sweeps=int(report["sweeps"]),
        build_seconds=float(report["build_seconds"]),
        compile_seconds=float(report["compile_seconds"]),
        seconds=tuple(report["seconds"]),
        cpu_seconds=tuple(report["cpu_seconds"]),
        precision=str(report["precision"]),
        threads=int(report["threads"]),
        versions=dict(report["versions"]),
    )


def _execute(command: Sequence[str], what: str, remedy: str) -> None:
    """Run a command to its end; on failure say what failed, the end of its stderr and the remedy."""
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stderr.splitlines()[-TAIL:]) or "(nothing on stderr)"
        raise PeerError(f"{what}: failed with exit status {done.returncode}\n{tail}\n{remedy}")
