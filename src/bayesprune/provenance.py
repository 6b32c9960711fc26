"""Where a number came from: versions and hardware, kept beside every measurement.  No host or user names."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


def versions(*others: str) -> dict[str, str]:
    """Versions of this package, Python and what the numbers depend on; others: packages to name as well."""
    found = {"python": platform.python_version()}
    for package in ("bayesprune", "torch", "numpy", "triton", *others):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware(device: torch.device | str = "cpu") -> dict[str, str | int]:
    """The processor and, for a CUDA device, the GPU."""
    found: dict[str, str | int] = {
        "machine": platform.machine(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }
    if torch.device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
