"""Where the numbers of a benchmark are kept."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def keep(report: dict[str, Any], output: Path) -> None:
    """Write a report as JSON, complete or not at all."""
    output.parent.mkdir(exist_ok=True)
    unfinished = output.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(report, indent=1) + "\n")
    unfinished.replace(output)
    print(f"kept in {output.name}")
