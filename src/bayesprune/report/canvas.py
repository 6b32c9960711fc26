"""Matrices and messages as HTML: the values as base64, drawn by script.js where they are looked at."""

import base64
from typing import Any

from bayesprune.report.charts import Frames, Matrices, Matrix
from bayesprune.report.markup import data_block, escape, plain, prose

FLATTEST, TALLEST, ALONE = 3.5, 1.0, 1.6  # width over height of a matrix whose cells need not be squares
KEYS = "Plus and minus zoom, arrow keys move, 0 shows everything."


def matrices_html(figure: Matrices) -> str:
    """The panels, their buttons and their values."""
    panels = "".join(_panel(one, figure) for one in figure.panels)
    clusters = any(one.rectangles for one in figure.panels)
    pressed = (
        '<button type="button" data-do="clusters" aria-pressed="true">Clusters</button>' if clusters else ""
    ) + '<button type="button" data-do="support" aria-pressed="false">Support only</button>'
    tools = (
        '<div class="tools" role="toolbar" aria-label="View of the matrices">'
        '<button type="button" data-do="in" aria-label="Zoom in">+</button>'
        '<button type="button" data-do="out" aria-label="Zoom out">−</button>'
        f'<button type="button" data-do="all">Whole</button>{pressed}</div>'
    )
    linked = " data-linked" if figure.linked else ""
    count = min(3, len(figure.panels))
    return f'<div class="matrices"{linked}>{tools}<div class="panels p{count}">{panels}</div></div>'


def frames_html(figure: Frames) -> str:
    """A slider over the iterations, a choice of the layer, and a canvas for every message."""
    options = "".join(f"<option>{escape(one.layer)}</option>" for one in figure.layers)
    content = {
        "iterations": list(figure.iterations),
        "layers": [
            {
                "shape": list(one.shape),
                "rows": one.parts[0].shape[1],
                "columns": one.parts[0].shape[2],
                "parts": [_base64(part.tobytes()) for part in one.parts],
            }
            for one in figure.layers
        ],
    }
    last = len(figure.iterations) - 1
    canvases = "".join(
        f'<div class="panel"><p class="panel-title">{prose(title)}</p><canvas width="64" height="64" role="img" '
        f'aria-label="{escape(plain(title))}"></canvas></div>'
        for title in figure.titles
    )
    return (
        '<div class="frames"><div class="tools">'
        f"<label>Layer <select>{options}</select></label>"
        '<button type="button" data-do="play" aria-pressed="false">Play</button>'
        f'<label class="slide">Iteration <input type="range" min="0" max="{last}" value="{last}" step="1"></label>'
        f"<output>{figure.iterations[-1]}</output></div>"
        f'<div class="panels p3">{canvases}</div>'
        '<p class="ramp"><span>0</span><span class="ramp-bar chance"></span><span>1</span>'
        '<span class="readout" aria-live="polite"></span></p>'
        f"{data_block(content)}</div>"
    )


def _panel(matrix: Matrix, figure: Matrices) -> str:
    rows, columns = matrix.whole
    cell_rows, cell_columns = matrix.cells.shape
    shape = columns / max(1, rows)
    width = ""
    if matrix.square:  # cells of all panels are equally large
        width = f";width:{100 * columns / max(one.whole[1] for one in figure.panels if one.square):.2f}%"
    else:
        shape = min(max(shape, ALONE if len(figure.panels) == 1 else TALLEST), FLATTEST)
    content: dict[str, Any] = {
        "rows": cell_rows,
        "columns": cell_columns,
        "whole": [rows, columns],
        "block": list(matrix.block),
        "largest": float(f"{matrix.largest:.4g}"),
        "taps": list(matrix.taps),
        "rectangles": [value for one in matrix.rectangles for value in one],
        "square": matrix.square,
        "cells": _base64(matrix.cells.tobytes()),
    }
    size = "" if matrix.square else f" <span>{rows} × {columns}</span>"
    edges = (
        ""
        if matrix.square
        else f'<p class="edges"><span>{escape(figure.y_label)} ↓</span><span>{escape(figure.x_label)} →</span></p>'
    )
    title = matrix.title
    return (
        f'<div class="panel"><p class="panel-title">{prose(title)}{size}</p>'
        '<canvas class="matrix" tabindex="0" role="application" aria-roledescription="zoomable matrix" '
        f'aria-label="{escape(figure.title)}, {escape(title)}, {rows} by {columns}. {KEYS}" '
        f'style="aspect-ratio:{shape:.4f}{width}"></canvas>{edges}'
        f'<p class="ramp"><span>−{matrix.largest:.2g}</span><span class="ramp-bar signed"></span>'
        f'<span>{matrix.largest:.2g}</span></p><p class="readout" aria-live="polite"></p>{data_block(content)}</div>'
    )


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
