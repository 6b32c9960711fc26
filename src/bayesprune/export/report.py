"""What an export wrote and how well it agrees with the network."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


class ExportError(RuntimeError):
    """The network was not exported; the message says why and what to do.  No file was left or changed."""


@dataclass(frozen=True)
class ExportReport:
    """A file that was written, read back and compared with the network.

    Args:
        path: the file.
        format: onnx, torch-export, safetensors or clusters.
        bytes: its size.
        max_abs: largest difference between an output of the file and of the network.
        max_rel: that difference over the largest output.
        batches: batch sizes that were compared; () where the values themselves were.
        opset: version of the ONNX operators, None for other formats.
        note: what a reader of the file must know, or nothing.
    """

    path: Path
    format: str
    bytes: int
    max_abs: float
    max_rel: float
    batches: tuple[int, ...] = ()
    opset: int | None = None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain types only, for JSON; the file by its name, not by where it lies."""
        return asdict(self) | {"path": self.path.name, "batches": list(self.batches)}

    def in_words(self) -> str:
        """One or two sentences."""
        size = f"{self.bytes:,} bytes"
        if self.batches:
            sizes = ", ".join(map(str, self.batches))
            checked = f"same outputs at batch sizes {sizes} (largest relative difference {self.max_rel:.1e})"
        else:
            checked = "every value read back unchanged"
        return f"{self.path.name}: {size}, {checked}." + (f"  {self.note}" if self.note else "")
