"""A small run folder, written piece by piece, so that every figure in it is known."""

import json

import torch

from bayesprune import artefact, models
from bayesprune.runs import LayerMessages, Messages, RunFolder
from bayesprune.surgery import operate

SHAPE = (1, 8, 8)
ITERATIONS = 6
LAYERS = ("conv1", "conv2", "fc1", "fc2", "out")


def measured(network, batch, runtime, median, layout="contiguous"):
    times = dict.fromkeys(("mean", "median", "deviation", "smallest", "p90"), median)
    return {"network": network, "batch": batch, "runtime": runtime, "layout": layout, "milliseconds": times}


def compared(batch, before, after, reason=""):
    ratio = before / after
    return {
        "batch": batch,
        "baseline": {"name": "dense", "runtime": "eager", "layout": "contiguous", "median": before},
        "network": {"name": "shrunk", "runtime": "native", "layout": "contiguous", "median": after},
        "ratio": ratio,
        "interval": [0.9 * ratio, 1.1 * ratio],
        "faster": ratio > 1.2,
        "reason": reason,
    }


LATENCY = {
    "settings": {"device": "cpu", "threads": 1, "batches": [1, 64]},
    "rows": [
        measured("dense", 1, "eager", 0.5),
        measured("dense", 1, "eager", 0.4, "channels_last"),
        measured("shrunk", 1, "native", 0.4),
        measured("dense", 64, "eager", 6.0),
        measured("shrunk", 64, "native", 2.0),
        {"network": "shrunk", "batch": 64, "runtime": "onnx", "milliseconds": None, "error": "not installed"},
    ],
    "comparisons": [compared(1, 0.4, 0.4, "it starts as many operations"), compared(64, 6.0, 2.0)],
    "words": "",
}
SUMMARY = {
    "accuracy": 0.891,
    "accuracy_unpruned": 0.9038,
    "nonzero_fraction": 0.04,
    "macs": 250,
    "macs_shrunk": 250,
    "macs_dense": 1000,
    "bytes_dense": 100_000,
    "status": "finished",
    "latency": LATENCY,
    "versions": {"torch": "2"},
}


def masks_of(network):
    """Half of the units dead, a quarter of the other weights live."""
    generator = torch.Generator().manual_seed(1)
    masks = {}
    for name in LAYERS:
        weight = network.get_submodule(name).weight
        masks[name] = torch.rand(weight.shape, generator=generator) < 0.25
        if name != "out":
            masks[name][weight.shape[0] // 2 :] = False
    masks["fc1"][:4, :5] = True
    return masks


def history():
    rows = [{"phase": "warmup", "epoch": 1, "validation_accuracy": 0.5, "loss": 1.0}]
    for epoch in range(1, ITERATIONS + 1):
        row = {"phase": "prune", "epoch": epoch, "validation_accuracy": 0.8 + epoch / 100, "message_change": 0.5**epoch}
        row |= {"nonzero_fraction": 0.6**epoch, "macs_fraction": 0.8**epoch}
        row["message_change_by_layer"] = {name: 0.5**epoch / (place + 1) for place, name in enumerate(LAYERS)}
        row["evidence_change_by_layer"] = {name: 0.4**epoch for name in LAYERS}
        rows.append(row)
    return [*rows, {"phase": "finetune", "epoch": 1, "validation_accuracy": 0.9, "nonzero_fraction": 0.04}]


def messages_of(iteration):
    """In every layer the probability grows with the iteration, and along the columns."""
    layers = {}
    for place, name in enumerate(LAYERS):
        base = torch.arange(40).repeat(30, 1) + 20 * iteration + place
        layers[name] = LayerMessages((30, 40), *((base + part).to(torch.uint8) for part in range(3)))
    return Messages(iteration, layers)


def write_run(path, *, summary=SUMMARY, messages=True, name="lenet5"):
    network = models.create("lenet5", SHAPE, generator=torch.Generator().manual_seed(0))
    before = {key: value.clone() for key, value in network.state_dict().items()}
    masks = masks_of(network)
    with torch.no_grad():
        for layer, mask in masks.items():
            network.get_submodule(layer).weight *= mask
    config = {"model": name, "data": "digits", "settings": {"learning_rate": 0.01, "seed": 0}}
    with RunFolder.create(path, config) as run:
        for row in history():
            if "message_change" in row and messages:
                run.write_messages(messages_of(row["epoch"]))
            run.append(row)
        run.save_checkpoint(
            {"model": dict(network.state_dict()), "masks": masks, "unpruned_weights": before, "rows": 8}
        )
        shrunk = operate(network.eval(), masks, torch.zeros(2, *SHAPE)).network
        metrics = {key: value for key, value in (summary or {}).items() if key != "latency"}
        described = {"example_shape": SHAPE, "config": config, "metrics": metrics, "classes": list("0123456789")}
        artefact.save(path / "network.safetensors", shrunk, **described)
        if summary is not None:
            run.write_summary(summary)
    return path


def write_frontier(path, file):
    """A frontier of three members; the second is on the front, has a file, and is the most accurate."""
    members = []
    for place, (accuracy, nonzero, removed) in enumerate([(0.90, 0.2, 0.5), (0.95, 0.1, 0.6), (0.94, 0.3, 0.2)]):
        record = {"settings": {"seed": place}, "status": "finished", "number": place, "file": "members/001.safetensors"}
        record |= {"validation": {"accuracy": accuracy}, "validation_unpruned": {"accuracy": 0.93}}
        members.append(record | {"nonzero_fraction": nonzero, "macs_removed": removed, "macs": 1000 * (1 - removed)})
    (path / "members").mkdir(parents=True)
    (path / "members" / "001.safetensors").write_bytes(file.read_bytes())
    plan = {"model": "lenet5", "data": "digits", "settings": []}
    (path / "frontier.json").write_text(json.dumps({"plan": plan, "members": members, "finished": True}))
    return path
