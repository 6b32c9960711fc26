"""Which weights make and read which neurons and channels of a network, exactly.

    structure = trace(network, torch.zeros(1, 3, 32, 32))
    masks = close(structure, masks)  # a dead unit takes its other side with it
    macs(structure, live_units(structure, masks))

A *unit* is a neuron or channel: one id per set of channels that can only be removed together.
"""

from bayesprune.structure.closing import close, live_units
from bayesprune.structure.counting import macs, to_weights, unit_costs, unit_sizes, unit_sums, weights, widths
from bayesprune.structure.one_thread import traced_module
from bayesprune.structure.tracing import trace, trace_graph
from bayesprune.structure.units import Layer, Resize, Slot, Structure

__all__ = [
    "Layer",
    "Resize",
    "Slot",
    "Structure",
    "close",
    "live_units",
    "macs",
    "to_weights",
    "trace",
    "trace_graph",
    "traced_module",
    "unit_costs",
    "unit_sizes",
    "unit_sums",
    "weights",
    "widths",
]
