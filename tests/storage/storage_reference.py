"""A second reader of packed arrays, bit by bit and cell by cell, from the description in docs/artefact.md alone."""

import zlib


class Bits:
    """A row of characters 0 and 1 that is read from the front."""

    def __init__(self, content):
        self.rest = "".join(f"{byte:08b}" for byte in content)

    def take(self, count):
        taken, self.rest = self.rest[:count], self.rest[count:]
        assert len(taken) == count
        return taken

    def digits(self, count):
        return int(self.take(count) or "0", 2)

    def zeros(self):
        """How many zeros there are before the next one, which is read as well."""
        count = 0
        while self.take(1) == "0":
            count += 1
        return count

    def number(self):
        zeros = self.zeros()
        return int("1" + self.take(zeros), 2) - 1

    def numbers(self, count):
        if count == 0:
            return []
        k = self.digits(5)
        quotients = [self.zeros() for _ in range(count)]
        return [quotient * 2**k + self.digits(k) for quotient in quotients]

    def places(self, count):
        places, last = [], -1
        for gap in self.numbers(count):
            last += gap + 1
            places.append(last)
        return places

    def subset(self, size):
        inverted = self.take(1) == "1"
        places = set(self.places(self.number()))
        assert all(place < size for place in places)
        return [(place in places) != inverted for place in range(size)]


def mask(bits, rows, columns):
    """The live cells, a set of (row, column)."""
    down = [row for row, kept in enumerate(bits.subset(rows)) if kept]
    across = [column for column, kept in enumerate(bits.subset(columns)) if kept]
    count = bits.number()
    corners = bits.places(count)
    heights, widths = bits.numbers(count), bits.numbers(count)
    covered = set()
    for corner, height, width in zip(corners, heights, widths, strict=True):
        row, column = divmod(corner, len(across))
        cells = {(row + i, column + j) for i in range(height + 3) for j in range(width + 3)}
        assert all(i < len(down) and j < len(across) for i, j in cells)
        assert not cells & covered
        covered |= cells
    free = [(i, j) for i in range(len(down)) for j in range(len(across)) if (i, j) not in covered]
    live = covered | {cell for cell, alive in zip(free, bits.subset(len(free)), strict=True) if alive}
    return {(down[i], across[j]) for i, j in live}


def unpack(content, shapes, item_sizes):
    """Every array as a flat list of integers, not negative."""
    length = int.from_bytes(content[:4], "little")
    bits, rest = Bits(content[4 : 4 + length]), content[4 + length :]
    masks = []
    for shape in shapes:
        if 0 in shape:
            rows, columns = 0, 0
        elif len(shape) > 1:
            rows, columns = shape[0], 1
            for size in shape[1:]:
                columns *= size
        else:
            rows, columns = 1, shape[0] if shape else 1
        live = mask(bits, rows, columns)
        cells = [(i, j) in live for i in range(rows) for j in range(columns)]
        masks.append((cells, iter(bits.subset(cells.count(False)))))
    assert len(bits.rest) < 8
    assert "1" not in bits.rest
    sizes = [cells.count(True) * (size - 1) for (cells, _), size in zip(masks, item_sizes, strict=True)]
    tails, heads = rest[: sum(sizes)], zlib.decompress(rest[sum(sizes) :])
    found = []
    for (cells, negative), size in zip(masks, item_sizes, strict=True):
        values = []
        for alive in cells:
            if alive:
                values.append(int.from_bytes(tails[: size - 1] + heads[:1], "little"))
                tails, heads = tails[size - 1 :], heads[1:]
            else:
                values.append(256**size // 2 if next(negative) else 0)
        found.append(values)
    assert (tails, heads) == (b"", b"")
    return found
