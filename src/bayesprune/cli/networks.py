"""Devices and networks by the names that a person gives."""

import importlib.util
import os
from typing import Any

import torch
import typer
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from bayesprune import data, models
from bayesprune.runs import RunError
from bayesprune.runtime import gpu, native


def device_by_name(wanted: str) -> torch.device:
    """The device that was asked for; each process that torchrun starts takes its own GPU."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
        if device.type == "cuda" and torch.cuda.is_available():
            own = int(os.environ.get("LOCAL_RANK", "0"))
            device = torch.device("cuda", own if device.index is None else device.index)
            torch.cuda.set_device(device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise typer.BadParameter(f"{wanted!r} cannot be used: {reason}; try cpu", param_hint="--device") from error
    return device


def network_of_plan(plan: dict[str, Any], data_of_run: data.DataSet) -> nn.Module:
    """The network that a run starts with: drawn by its seed, or from the file of its weights."""
    generator = torch.Generator().manual_seed(plan["settings"]["seed"])
    try:
        network = models.create(plan["model"], data_of_run.input_shape, len(data_of_run.classes), generator=generator)
    except ValueError as error:
        raise RunError(f"there is no {plan['model']} for {plan['data']}: {error}") from error
    if plan["weights"]:
        try:
            network.load_state_dict(load_file(plan["weights"]))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise RunError(f"{plan['weights']} does not hold the weights of a {plan['model']}: {error}") from error
    return network


def runtimes_of(device: torch.device) -> tuple[str, ...]:
    """The ways to run a network on a device that need no long preparation."""
    if device.type == "cuda":
        return ("eager", "cuda_graph", "fused", *(("triton",) if gpu.is_available() else ()))
    packages = ("onnx", "onnxscript", "onnxruntime")
    with_onnx = all(importlib.util.find_spec(one) for one in packages)
    return ("eager", *(("onnx",) if with_onnx else ()), *(("native",) if native.library() is not None else ()))
