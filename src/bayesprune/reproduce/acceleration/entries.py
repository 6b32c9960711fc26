"""ROW-DEVICE.json, .md and .png of every measurement, and the same of all of them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesprune.reproduce.acceleration.figure import draw_entries
from bayesprune.reproduce.acceleration.kept import Kept, network_digests
from bayesprune.reproduce.acceleration.markdown import acceleration_markdown, dense_in_torch
from bayesprune.reproduce.jobs import ROWS
from bayesprune.reproduce.methods import METHODS, UNPRUNED
from bayesprune.reproduce.row_files import name_of
from bayesprune.runs import RunError
from bayesprune.runs.atomic import write_atomically
from bayesprune.runs.plain_json import read_json, to_json

KEYS = ("row", "title", "device", "batch", "epochs_scale", "methods", "ways", "machine", "left_out")
DEVICES = ("cpu", "cuda")


def place_name(device: str, *, tf32: bool) -> str:
    """Of a device and its precision, in the names of files."""
    return f"{device}-tf32" if tf32 else device


def entry_name(row: str, place: str, epochs_scale: float = 1.0) -> str:
    """Of the files of a measurement; place: see `place_name`."""
    return f"{name_of(row, epochs_scale)}-{place}"


def entry_path(output: Path, row: str, place: str, epochs_scale: float = 1.0) -> Path:
    """The JSON file of a measurement."""
    return output / f"{entry_name(row, place, epochs_scale)}.json"


def entry_standing(path: Path, kept: Kept) -> str:
    """Whether a measurement is there, and of the networks that are kept now."""
    if not path.exists():
        return "to do"
    return "measured" if read_json(path).get("networks") == network_digests(kept) else "outdated"


def parts_folder(output: Path, row: str, place: str, epochs_scale: float = 1.0) -> Path:
    """Where a measurement is kept while it is not complete."""
    return output / "parts" / entry_name(row, place, epochs_scale)


def all_path(output: Path) -> Path:
    """The JSON file of all measurements, beside the folder of the single ones."""
    return output.with_name(f"{output.name}.json")


def write_entry(entry: dict[str, Any], output: Path) -> list[Path]:
    """Write the files of a measurement; without matplotlib no picture."""
    output.mkdir(parents=True, exist_ok=True)
    place = place_name(entry["device"], tf32=entry.get("tf32", False))
    path = entry_path(output, entry["row"], place, entry["epochs_scale"])
    write_atomically(path, [to_json(entry, path, indent=1).encode() + b"\n"])
    return [path, *_report([entry], path)]


def with_earlier(entry: dict[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """A measurement together with what an earlier one of the same row, device and batch has of other networks.

    Their figures have the key `earlier`: what their ratios are against, and with what they were measured.
    """
    for key in ("row", "device", "batch", "epochs_scale", "tf32"):
        old, new = (one.get(key, False) for one in (earlier, entry))
        if old != new:
            raise RunError(f"the earlier measurement has {key} {old}, this one {new}; they cannot be put together")
    origin = {
        "dense_ms": earlier["methods"][UNPRUNED]["best"]["milliseconds"]["median"],
        "dense_torch_ms": dense_in_torch(earlier),
        "dense_ways": [one for one in earlier["ways"] if one["network"] == UNPRUNED],
        "padding_counts": earlier.get("padding_counts", True),
        "hardware": earlier["hardware"],
        "versions": earlier["versions"],
    }
    others = {
        name: {"earlier": origin} | one for name, one in earlier["methods"].items() if name not in entry["methods"]
    }
    methods = entry["methods"] | others
    return entry | {
        "methods": {name: methods[name] for name in sorted(methods, key=METHODS.index)},
        "ways": entry["ways"] + [one for one in earlier["ways"] if one["network"] in others],
        "networks": {name: one for name, one in earlier["networks"].items() if name in others} | entry["networks"],
        "left_out": {name: reason for name, reason in entry["left_out"].items() if name not in others},
    }


def read_entries(output: Path) -> list[dict[str, Any]]:
    """All measurements but trials, in the order of the rows; RunError where a file is damaged."""
    entries = []
    for path in sorted(output.glob("*.json")):
        entry = read_json(path)
        if missing := [key for key in KEYS if key not in entry]:
            raise RunError(f"{path} is damaged (lacks {', '.join(missing)}); measure again, or remove the file")
        entries.append(entry)
    return sorted((one for one in entries if one["epochs_scale"] == 1), key=_order)


def merge_entries(output: Path) -> list[Path]:
    """Write one JSON, Markdown and picture of all measurements but trials; nothing where there are none."""
    entries = read_entries(output)
    if not entries:
        return []
    path = all_path(output)
    content = "[\n" + ",\n".join(json.dumps(one, allow_nan=False) for one in entries) + "\n]\n"
    write_atomically(path, [content.encode()])
    return [path, *_report(entries, path)]


def _order(entry: Mapping[str, Any]) -> tuple[int, int, bool]:
    return list(ROWS).index(entry["row"]), DEVICES.index(entry["device"]), bool(entry.get("tf32"))


def _report(entries: Sequence[Mapping[str, Any]], path: Path) -> list[Path]:
    text, picture = path.with_suffix(".md"), path.with_suffix(".png")
    write_atomically(text, [acceleration_markdown(entries).encode()])
    try:
        draw_entries(entries, picture)
    except ImportError:
        return [text]
    return [text, picture]
