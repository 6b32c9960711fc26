"""The artefact: one safetensors file with a network: architecture as data, weights, config, metrics, checksum.

save("small.safetensors", network, config=config, metrics=metrics)
network = load("small.safetensors")  # needs no class of the user's
read("small.safetensors").metrics
"""

from bayesprune.artefact.errors import ArtefactError, ArtefactWarning
from bayesprune.artefact.files import Artefact, TensorInfo, load, read, save

__all__ = ["Artefact", "ArtefactError", "ArtefactWarning", "TensorInfo", "load", "read", "save"]
