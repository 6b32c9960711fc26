"""FOLDER/robustness.json, .md, .png and .svg of the records of several networks."""

from pathlib import Path
from typing import Any

from bayesprune.provenance import hardware, versions
from bayesprune.reproduce.robustness_claims import Records, claims
from bayesprune.reproduce.robustness_figure import draw_robustness
from bayesprune.reproduce.robustness_markdown import robustness_markdown
from bayesprune.runs.atomic import remove_temporary_files, write_atomically
from bayesprune.runs.disk_errors import starting
from bayesprune.runs.plain_json import to_json

NAME = "robustness"


def write_robustness(records: Records, output: Path, device: str = "cpu") -> tuple[list[Path], str]:
    """Write the report of networks that were measured alike; returns the files, and a note where one is missing."""
    content: dict[str, Any] = {
        "study": NAME,
        "data": records[0]["data"],
        "seed": records[0]["settings"]["seed"],
        "settings": records[0]["settings"],
        "adversarial": next((one["adversarial"] for one in records if "after" in one), None),
        "networks": [dict(one) for one in records],
        "claims": [one.as_dict() for one in claims(records)],
        "versions": versions(),
        "hardware": hardware(device),
    }
    data, text = output / f"{NAME}.json", output / f"{NAME}.md"
    with starting(data):
        output.mkdir(parents=True, exist_ok=True)
        remove_temporary_files(data)
        write_atomically(data, [to_json(content, data, indent=1).encode() + b"\n"])
        write_atomically(text, [robustness_markdown(records).encode()])
        try:
            pictures = draw_robustness(records, output / NAME)
        except ImportError:
            return [data, text], "no picture: it needs matplotlib; try pip install 'bayesprune[figures]'"
    return [data, text, *pictures], ""
