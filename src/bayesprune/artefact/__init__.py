"""The artefact: one safetensors file with a network: architecture as data, weights, config, metrics, checksum.

save("small.safetensors", network, config=config, metrics=metrics)
network = load("small.safetensors")  # needs no class of the user's
read("small.safetensors").metrics

Zeros take no room: see `storage` of `save`.
"""

from bayesprune.artefact.errors import ArtefactError, ArtefactWarning
from bayesprune.artefact.files import (
    STORAGES,
    VALUES,
    Artefact,
    Storage,
    TensorInfo,
    load,
    read,
    read_arrays,
    save,
    size,
)

__all__ = [
    "STORAGES",
    "VALUES",
    "Artefact",
    "ArtefactError",
    "ArtefactWarning",
    "Storage",
    "TensorInfo",
    "load",
    "read",
    "read_arrays",
    "save",
    "size",
]
