"""How many bytes the same weights take in other formats, values and positions together.

- `dense`    every value;
- `coo`      the live values, row and column of each as int32;
- `csr`      the live values, the column of each and where each row begins as int32;
- `bsr4`, `bsr8`, `bsr16`  blocks of that height and width with a live value, whole and padded at the edges, the block
             column of each and where each row of blocks begins as int32;
- `bitmask`  the live values, and a bit for every value;
- `clusters` what `pack` makes of it.  The last bytes of all values are compressed together; an array has its share.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from bayesprune.regularity.formats import bitmask_bytes, coo_bytes, csr_bytes
from bayesprune.storage.bits import Flags
from bayesprune.storage.packing import Integers, as_matrix, live_values, pack

BLOCKS = (4, 8, 16)
FORMATS = ("dense", "coo", "csr", *(f"bsr{block}" for block in BLOCKS), "bitmask", "clusters")


@dataclass(frozen=True)
class Size:
    """Bytes of one array, or of several, by format.

    values: how many there are.  live: how many are not zero.  live_bytes: what these take as they are.
    position_bytes: of `clusters`, for where they are.
    """

    values: int
    live: int
    live_bytes: int
    position_bytes: float
    bytes: dict[str, int]

    def __add__(self, other: "Size") -> "Size":
        both = {name: self.bytes[name] + other.bytes[name] for name in FORMATS}
        return Size(
            self.values + other.values,
            self.live + other.live,
            self.live_bytes + other.live_bytes,
            self.position_bytes + other.position_bytes,
            both,
        )

    def index_bytes(self, name: str) -> float:
        """Bytes of a format for each live value, besides the value; NaN where none lives.

        Of `clusters` these are the positions, without what compressing the values saves.
        """
        if not self.live:
            return float("nan")
        extra = self.position_bytes if name == "clusters" else self.bytes[name] - self.live_bytes
        return extra / self.live


def sizes(arrays: Mapping[str, Integers]) -> dict[str, Size]:
    """The size of every array, by its name."""
    packed = pack(list(arrays.values()))
    all_live = max(sum(packed.values), 1)
    found = {}
    for (name, array), bits, live in zip(arrays.items(), packed.position_bits, packed.values, strict=True):
        mask = live_values(array).reshape(as_matrix(array.shape))
        ours = bits / 8 + live * (array.itemsize - 1) + packed.head_bytes * live / all_live
        found[name] = _size(mask, array.itemsize, bits / 8, round(ours))
    return found


def _size(mask: Flags, itemsize: int, position_bytes: float, ours: int) -> Size:
    cells = torch.from_numpy(mask)
    live = int(np.count_nonzero(mask))
    values = live * itemsize
    blocks = {f"bsr{block}": _blocked(mask, block, itemsize) for block in BLOCKS}
    return Size(
        mask.size,
        live,
        values,
        position_bytes,
        {
            "dense": mask.size * itemsize,
            "coo": values + coo_bytes(cells),
            "csr": values + csr_bytes(cells),
            **blocks,
            "bitmask": values + bitmask_bytes(cells),
            "clusters": ours,
        },
    )


def _blocked(mask: Flags, block: int, itemsize: int) -> int:
    rows: int = -(-mask.shape[0] // block)
    columns: int = -(-mask.shape[1] // block)
    padded = np.zeros((rows * block, columns * block), bool)
    padded[: mask.shape[0], : mask.shape[1]] = mask
    blocks = int(np.count_nonzero(padded.reshape(rows, block, columns, block).any((1, 3))))
    return blocks * (block * block * itemsize + 4) + 4 * (rows + 1)
