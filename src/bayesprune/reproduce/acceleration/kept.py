"""The networks that the rows of Table II have kept."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import nn

from bayesprune import artefact
from bayesprune.reproduce.jobs import check_known
from bayesprune.reproduce.methods import METHODS, UNPRUNED, is_under
from bayesprune.reproduce.row_files import FAILED, NETWORK, NO_NETWORK, RowFiles

PROTOCOL: Final = "best"
CHOICES: Final = tuple(method for method in METHODS if is_under(method, PROTOCOL))


@dataclass(frozen=True)
class KeptNetwork:
    """The row of a method, and the file of its network."""

    method: str
    row: dict[str, Any]
    path: Path

    def load(self) -> nn.Module:
        """The network, in eval mode on the CPU."""
        return artefact.load(self.path)


@dataclass(frozen=True)
class Kept:
    """What there is of a row and a seed.  left_out: methods without a network, and why."""

    name: str
    seed: int
    epochs_scale: float
    networks: tuple[KeptNetwork, ...]
    left_out: dict[str, str]


def kept_networks(files: RowFiles, methods: Sequence[str], seed: int, *, epochs_scale: float = 1.0) -> Kept:
    """The networks of these methods, and in any case the dense one, under the protocol `best`."""
    check_known("method", methods, CHOICES)
    found, left_out = [], {}
    for method in (one for one in CHOICES if one in (UNPRUNED, *methods)):
        path = files.folder / f"{method}-{PROTOCOL}-{seed}.json"
        if not path.exists():
            left_out[method] = "not trained"
            continue
        row, network = files.read(path), path.with_suffix(NETWORK)
        if row["status"].startswith(FAILED):
            left_out[method] = row["status"]
        elif not network.exists():
            left_out[method] = NO_NETWORK
        elif (artefact.read(network).config or {}).get("settings") != row["settings"]:
            left_out[method] = "its network was made with other settings than its row"
        else:
            found.append(KeptNetwork(method, row, network))
    return Kept(files.name, seed, epochs_scale, tuple(found), left_out)


def network_digests(kept: Kept) -> dict[str, str]:
    """Of the files of the networks, by method."""
    return {one.method: digest(one.path) for one in kept.networks}


def digest(*paths: Path) -> str:
    """Of the contents of files."""
    found = hashlib.sha256()
    for path in paths:
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()
