"""Networks with many zeros in few bytes: clusters of live weights as rectangles, the others as gaps, and the values.

    packed = pack(arrays)  # arrays of integers: the bits of the weights
    arrays = list(unpack(packed.content, specs))  # the very same

    sizes({"fc1": array})["fc1"].bytes["csr"]  # what others take

A layer that is dense costs less than a byte more than its values.
"""

from bayesprune.storage.errors import StorageError
from bayesprune.storage.packing import Integers, Packed, Spec, as_matrix, live_values, pack, unpack
from bayesprune.storage.sizes import FORMATS, Size, sizes

__all__ = [
    "FORMATS",
    "Integers",
    "Packed",
    "Size",
    "Spec",
    "StorageError",
    "as_matrix",
    "live_values",
    "pack",
    "sizes",
    "unpack",
]
