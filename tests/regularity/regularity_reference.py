"""Slow and plain answers: all rectangles enumerated, and a codec of the cluster format."""

import itertools
import struct

import numpy as np


def greedy(live: np.ndarray, smallest: tuple[int, int] = (3, 3)) -> list[tuple[int, int, int, int]]:
    """Enumerate every rectangle of what is free, take the best by (area, row, column, height), repeat."""
    free, taken = live.copy(), []
    rows, columns = live.shape
    while True:
        best = None
        for top, left in itertools.product(range(rows), range(columns)):
            for high in range(smallest[0], rows - top + 1):
                for wide in range(smallest[1], columns - left + 1):
                    if free[top : top + high, left : left + wide].all():
                        key = (-high * wide, top, left, high, wide)
                        best = key if best is None else min(best, key)
        if best is None:
            return taken
        _, top, left, high, wide = best
        taken.append((top, left, high, wide))
        free[top : top + high, left : left + wide] = False


def coverable(live: np.ndarray, smallest: tuple[int, int] = (3, 3)) -> int:
    """Live cells in any all-live window."""
    inside, (high, wide) = np.zeros_like(live), smallest
    for top, left in itertools.product(range(live.shape[0] - high + 1), range(live.shape[1] - wide + 1)):
        window = slice(top, top + high), slice(left, left + wide)
        inside[window] |= live[window].all()
    return int(inside.sum())


def encode_gaps(live: np.ndarray) -> bytes:
    written, previous = bytearray(), -1
    for place in np.flatnonzero(live).tolist():
        gap = place - previous - 1
        while gap >= 255:
            written.append(255)
            gap -= 255
        written.append(gap)
        previous = place
    return bytes(written)


def decode_gaps(content: bytes, shape: tuple[int, int]) -> np.ndarray:
    live, place = np.zeros(shape[0] * shape[1], bool), 0
    for byte in content:
        place += byte
        if byte < 255:
            live[place] = True
            place += 1
    return live.reshape(shape)


def encode(rectangles: list[list[int]], leftover: np.ndarray) -> bytes:
    rows, columns = leftover.shape
    layout = rectangle_layout(rows, columns)
    gaps, bits = encode_gaps(leftover), np.packbits(leftover).tobytes() if leftover.any() else b""
    kind, rest = min((0, gaps), (1, bits), key=lambda option: len(option[1]))
    body = b"".join(struct.pack(layout, r, h - 1, c, w - 1) for r, c, h, w in rectangles)
    return struct.pack("<IB", len(rectangles), kind) + body + rest


def decode(content: bytes, shape: tuple[int, int]) -> np.ndarray:
    layout = rectangle_layout(*shape)
    (count, kind), place = struct.unpack_from("<IB", content), 5
    ends = place + count * struct.calcsize(layout)
    rest = content[ends:]
    if kind == 0:
        live = decode_gaps(rest, shape)
    else:
        live = np.unpackbits(np.frombuffer(rest, np.uint8), count=shape[0] * shape[1]).astype(bool).reshape(shape)
    for top, high, left, wide in struct.iter_unpack(layout, content[place:ends]):
        live[top : top + high + 1, left : left + wide + 1] = True
    return live


def rectangle_layout(rows: int, columns: int) -> str:
    down, across = ("B" if n <= 256 else "H" if n <= 65536 else "I" for n in (rows, columns))
    return f"<{down}{down}{across}{across}"
