"""A report of runs: one HTML file that needs nothing else, and its figures as files.

runs, frontiers = read_sources([Path("runs/lenet5-digits-1")])
Path("report.html").write_text(render(runs, frontiers))
"""

from bayesprune.report.page import render
from bayesprune.report.plates import FORMATS, write_figures
from bayesprune.report.reading import Frontier, Layer, Run, read_sources
from bayesprune.report.sections import drawings, sections

__all__ = ["FORMATS", "Frontier", "Layer", "Run", "drawings", "read_sources", "render", "sections", "write_figures"]
