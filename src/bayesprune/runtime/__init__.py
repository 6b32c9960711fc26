"""Fast execution of a compressed network: the fastest of several ways, measured on the machine that runs it.

fast = compile(network, example)
fast(x)
fast.explain()
"""

from bayesprune.runtime.compiled import (
    Choice,
    Compiled,
    FixedWay,
    compile,
    fastest_fused,
    fastest_native,
    fastest_triton,
)
from bayesprune.runtime.lowered import UnsupportedError

__all__ = [
    "Choice",
    "Compiled",
    "FixedWay",
    "UnsupportedError",
    "compile",
    "fastest_fused",
    "fastest_native",
    "fastest_triton",
]
