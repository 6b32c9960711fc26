"""The weights alone, as a plain state_dict in a safetensors file."""

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from bayesprune.export.files import write_verified
from bayesprune.export.report import ExportError, ExportReport


def to_safetensors(network: nn.Module, path: Path | str) -> ExportReport:
    """Write the state_dict of `network`, types as they are; `safetensors.torch.load_model` fills a network from it.

    A tensor with several names is saved once, under the first; the file's metadata maps the other names to it, as
    that function expects.
    """
    path = Path(path)
    tensors, other_names = _once(network.state_dict())
    content = save(tensors, {"format": "pt", **other_names})

    def verify(file: Path) -> ExportReport:
        with safe_open(file, framework="pt") as stored:
            if set(stored.keys()) != set(tensors):
                raise ExportError(f"{path.name} does not hold the names that were written; nothing was left")
            for name, tensor in tensors.items():
                if not _same(stored.get_tensor(name), tensor):
                    raise ExportError(f"{name} was not read back as it was written to {path.name}; nothing was left")
        return ExportReport(path, "safetensors", len(content), 0.0, 0.0)

    return write_verified(path, [content], verify)


def _once(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor under its first name, and the other names with the first."""
    tensors: dict[str, Tensor] = {}
    other_names: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for name, tensor in state.items():
        place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), str(tensor.device))
        if tensor.numel() and place in first:
            other_names[name] = first[place]
            continue
        first[place] = name
        # A clone, because views of one storage are refused otherwise.
        tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return tensors, other_names


def _same(left: Tensor, right: Tensor) -> bool:
    """Equal type, shape and bits; NaNs count as equal to themselves."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))
