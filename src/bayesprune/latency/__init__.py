"""How long networks take, measured side by side.

latency = measure({"dense": network, "shrunk": smaller}, example, batches=(1, 256))
print(latency.table())
print(latency.in_words())
"""

from bayesprune.latency.candidates import LAYOUTS, RUNTIMES
from bayesprune.latency.measuring import LatencyError, measure
from bayesprune.latency.report import Comparison, Latency, Row
from bayesprune.latency.rounding import shrink_fastest

__all__ = ["LAYOUTS", "RUNTIMES", "Comparison", "Latency", "LatencyError", "Row", "measure", "shrink_fastest"]
