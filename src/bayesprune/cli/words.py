"""Figures for people."""

from collections.abc import Mapping
from typing import Any

INDENT = " " * 11


def in_words(summary: Mapping[str, Any]) -> str:
    """A summary, or the part of it that an artefact holds; what is not there is left out."""
    lines = _score(summary)
    if "nonzero_fraction" in summary:
        share = f"{summary['nonzero_fraction']:.2%} nonzero"
        lines.append(f"weights    {share} ({summary['dense_fraction']:.2%} as a dense network)")
    if "macs" in summary:
        left = summary.get("macs_shrunk", summary["macs"])
        lines.append(f"MACs       {1 - left / summary['macs_dense']:.1%} removed, {left:,} of ")
        lines[-1] += f"{summary['macs_dense']:,} left"
    if "structure" in summary:
        lines.append(f"structure  {'-'.join(map(str, summary.get('structure_shrunk', summary['structure'])))}")
    if "bytes" in summary:
        lines.append(f"size       {size_in_words(summary['bytes'], summary.get('bytes_dense'))}")
    if "proof" in summary:
        lines.append(f"proof      {_proof(summary['proof'])}")
    if "latency" in summary:
        lines.append("speed      " + summary["latency"]["words"].replace("\n", f"\n{INDENT}"))
    if "seconds" in summary:
        lines.append(f"time       {summary['seconds']:.0f} s")
    if "status" in summary:
        lines.append(f"status     {summary['status']}")
    notes = [*summary.get("notes", ()), *(f"stays dense: {note}" for note in summary.get("surgery_notes", ()))]
    return "\n".join(lines + [f"note       {note}" for note in notes])


def size_in_words(size: int, dense: int | None) -> str:
    """Bytes, and how many times fewer than the dense network needs."""
    if not dense:
        return f"{size:,} bytes"
    return f"{size:,} bytes, {dense / size:.2f} times smaller than the dense network ({dense:,} bytes)"


def printable(text: str) -> str:
    """Without what a stranger's file could do to a terminal."""
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)


def _score(summary: Mapping[str, Any]) -> list[str]:
    if "accuracy" in summary:
        line = f"accuracy   {summary['accuracy']:.2%}"
        if "accuracy_unpruned" in summary:  # files of `reproduce` do not know it: the dense network is another job
            line += f", unpruned {summary['accuracy_unpruned']:.2%} ({-100 * summary['accuracy_drop']:+.2f} points)"
        return [line]
    if "rmse" in summary:
        return [f"rmse       {summary['rmse']:.4g}, unpruned {summary['rmse_unpruned']:.4g}"]
    return []


def _proof(proof: Mapping[str, Any]) -> str:
    figures = [f"{_tiny(proof['max_rel_32'])} (float32)"]
    if "max_rel_64" in proof:
        figures.append(f"{_tiny(proof['max_rel_64'])} (float64)")
    return f"equal to the masked network to {', '.join(figures)}, on {proof['examples']} examples"


def _tiny(value: float) -> str:
    """One digit: 3e-7."""
    return f"{value:.0e}".replace("e-0", "e-") if value else "0"
