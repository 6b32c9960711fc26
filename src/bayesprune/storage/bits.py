"""Numbers as bits, most significant first: single numbers as Elias gamma codes, lists and subsets as Rice codes.

- number n: the binary digits of n + 1, with one zero before them for every digit but the first;
- numbers: 5 bits with the parameter k; for every number n // 2**k zeros and a one; then for every number the k lowest
  bits.  Nothing where the list is empty;
- subset of 0, 1, ..., size - 1: one bit, 1 where the list is of those that are NOT in it; how many there are, a
  number; then how far each is from the one before it, less one, as numbers.

With k = 0 the list of a subset is its bit mask, up to the last of its members.
"""

import numpy as np
from numpy.typing import NDArray

from bayesprune.storage.errors import StorageError

Bits = NDArray[np.uint8]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

PARAMETER_BITS = 5
LONGEST_NUMBER = 62  # digits


class BitWriter:
    """Collects bits."""

    def __init__(self) -> None:
        self._pieces: list[Bits] = []
        self.length = 0

    def put_number(self, value: int) -> None:
        """One number, not negative, of any size."""
        digits = (value + 1).bit_length()
        self._put_digits(value + 1, 2 * digits - 1)

    def put_numbers(self, values: Numbers) -> None:
        """A list whose length the reader knows; none negative."""
        if not len(values):
            return
        k = _best_parameter(values)
        self._put_digits(k, PARAMETER_BITS)
        ends = np.cumsum((values >> k) + 1)
        unary = np.zeros(int(ends[-1]), np.uint8)
        unary[ends - 1] = 1
        self._put(unary)
        lowest = np.empty((len(values), k), np.uint8)
        for column in range(k):
            lowest[:, column] = values >> (k - 1 - column) & 1
        self._put(lowest.reshape(-1))

    def put_subset(self, members: Flags) -> None:
        """Which of a known number of things, (size,) bool."""
        inverted = 2 * int(np.count_nonzero(members)) > len(members)
        self._put_digits(int(inverted), 1)
        places = np.flatnonzero(~members if inverted else members)
        self.put_number(len(places))
        self.put_numbers(gaps(places))

    def extend(self, other: "BitWriter") -> None:
        """All bits of another writer."""
        self._pieces += other._pieces
        self.length += other.length

    def to_bytes(self) -> bytes:
        """The bits, with zeros up to a whole byte."""
        return np.packbits(np.concatenate(self._pieces)).tobytes() if self._pieces else b""

    def _put_digits(self, value: int, digits: int) -> None:
        self._put(np.array([value >> place & 1 for place in reversed(range(digits))], np.uint8))

    def _put(self, bits: Bits) -> None:
        self._pieces.append(bits)
        self.length += len(bits)


class BitReader:
    """Reads what a BitWriter wrote; raises StorageError where the bits cannot be that."""

    def __init__(self, content: bytes | memoryview) -> None:
        self._bits = np.unpackbits(np.frombuffer(content, np.uint8))
        self._ones = np.flatnonzero(self._bits)
        self._at = 0

    def number(self, most: int) -> int:
        """One number, at most `most`."""
        zeros = int(self._next_ones(1)[0]) - self._at
        if zeros >= LONGEST_NUMBER:
            raise StorageError(f"a number of {zeros + 1} digits, the limit is {LONGEST_NUMBER}")
        self._at += zeros
        value = self._digits(zeros + 1) - 1
        if value > most:
            raise StorageError(f"the number {value} where at most {most} is possible")
        return value

    def numbers(self, count: int, most: int) -> Numbers:
        """A list of `count` numbers, each at most `most`, (count,)."""
        if not count:
            return np.empty(0, np.int64)
        k = self._digits(PARAMETER_BITS)
        ones = self._next_ones(count)
        values = np.diff(ones, prepend=self._at - 1) - 1
        if int(values.max()) > most >> k:
            raise StorageError(f"the number {int(values.max()) << k} or more where at most {most} is possible")
        self._at = int(ones[-1]) + 1
        lowest = self._take(count * k).reshape(count, k)
        for column in range(k):
            values = values << 1 | lowest[:, column]
        if int(values.max()) > most:
            raise StorageError(f"the number {int(values.max())} where at most {most} is possible")
        return values

    def places(self, count: int, size: int) -> Numbers:
        """`count` places of 0, 1, ..., size - 1 in ascending order, written as their gaps, (count,)."""
        between = self.numbers(count, size)
        # As floats first, for these do not overflow.
        if between.sum(dtype=np.float64) + count > size:
            raise StorageError(f"places beyond the {size} that there are")
        return np.cumsum(between + 1) - 1

    def subset(self, size: int) -> Flags:
        """Which of `size` things, (size,) bool."""
        inverted = bool(self._digits(1))
        places = self.places(self.number(size), size)
        members = np.full(size, inverted)
        members[places] = not inverted
        return members

    def finish(self) -> None:
        """Raise StorageError unless nothing is left but the zeros that fill the last byte."""
        rest = self._bits[self._at :]
        if len(rest) >= 8 or rest.any():
            raise StorageError(f"{len(rest)} bits are left over")

    def _digits(self, count: int) -> int:
        return int("".join(map(str, self._take(count))), 2)

    def _take(self, count: int) -> Bits:
        if self._at + count > len(self._bits):
            raise StorageError(f"the bits end after {len(self._bits)}, where {self._at + count} are needed")
        taken = self._bits[self._at : self._at + count]
        self._at += count
        return taken

    def _next_ones(self, count: int) -> Numbers:
        """Where the next ones are."""
        first = int(np.searchsorted(self._ones, self._at))
        if first + count > len(self._ones):
            raise StorageError(f"the bits end after {len(self._bits)}, and {count} more numbers are needed")
        return self._ones[first : first + count]


def gaps(places: Numbers) -> Numbers:
    """How far each of ascending places is from the one before it, less one."""
    return np.diff(places, prepend=-1) - 1


def _best_parameter(values: Numbers) -> int:
    """The parameter k of the Rice code with the fewest bits, at most 31."""
    tried = range(min(int(values.max()).bit_length() + 1, 2**PARAMETER_BITS))
    return min(tried, key=lambda k: int((values >> k).sum()) + len(values) * k)
