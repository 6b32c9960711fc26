"""Mutate a small artefact many times and load each of the files, in a process with little memory to give.

python mutate_artefacts.py FOLDER COUNT SEED STORAGE

STORAGE: dense or clusters.  The last line of the output is JSON: how often the file was refused, loaded as the same
network, and loaded as another one.  Only where the checksum was computed anew may it be another one: then somebody
wrote another network, and the weights are what a second, slow reader finds in its bytes.
"""

import json
import random
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from artefact_crafting import join, join_packed, split, split_packed, with_checksum
from artefact_networks import clustered, small

from bayesprune import artefact
from bayesprune.artefact import ArtefactError

sys.path.append(str(Path(__file__).parents[1] / "storage"))
import storage_reference

CONSTANT = 64 * 2**20
VALUES = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        3,
        2**31,
        2**63,
        -(2**63),
        10**30,
        0.5,
        1e308,
        "",
        "x",
        "../x",
        "__class__",
        "os.system",
    ),
    *([], {}, [0], [[]], {"node": 0}, {"node": 10**6}, {"tuple": []}, "x'); import os #", "apply", "F64", "a" * 1000),
]


def flip_bits(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8])):
        changed[_position(content, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def overwrite(content: bytes, rng: random.Random) -> bytes:
    start = _position(content, rng)
    return content[:start] + rng.randbytes(rng.choice([1, 4, 64])) + content[start + 1 :]


def replace_character(content: bytes, rng: random.Random) -> bytes:
    """JSON stays JSON more often when a digit or a letter becomes another one."""
    start = _position(content, rng)
    return content[:start] + rng.choice(b'0123456789abcxyz_".,:[]{}').to_bytes() + content[start + 1 :]


def truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def insert(content: bytes, rng: random.Random) -> bytes:
    start = _position(content, rng)
    return content[:start] + rng.randbytes(rng.choice([1, 8, 300])) + content[start:]


def swap_blocks(content: bytes, rng: random.Random) -> bytes:
    size = rng.choice([1, 8, 64])
    one, other = sorted(rng.randrange(len(content) - size) for _ in range(2))
    if other < one + size:
        return content[1:] + content[:1]
    middle = content[one + size : other]
    return content[:one] + content[other : other + size] + middle + content[one : one + size] + content[other + size :]


def change_length(content: bytes, rng: random.Random) -> bytes:
    length = int.from_bytes(content[:8], "little") + rng.choice([-8, -1, 1, 8, 1000, 10**9, 2**63])
    return (length % 2**64).to_bytes(8, "little") + content[8:]


def edit_header(content: bytes, rng: random.Random) -> bytes:
    header, data = split(content)
    _edit(header, rng)
    return join(header, data, checksum=False)


def edit_architecture(content: bytes, rng: random.Random) -> bytes:
    header, data = split(content)
    architecture = json.loads(header["__metadata__"]["architecture"])
    for _ in range(rng.choice([1, 1, 2])):
        _edit(architecture, rng)
    header["__metadata__"]["architecture"] = json.dumps(architecture)
    return join(header, data, checksum=False)


def edit_line(content: bytes, rng: random.Random) -> bytes:
    """A change in one of the JSON texts of a packed network."""
    lines, tensors = split_packed(content)
    number = rng.choice([0, -1, rng.randrange(len(lines))])
    line = {"content": json.loads(lines[number])}
    _edit(line, rng)
    lines[number] = json.dumps(line.get("content")).encode()
    return join_packed(lines, tensors, checksum=False)


def damage_lines(content: bytes, rng: random.Random) -> bytes:
    """A change of the text that is compressed, so that it can still be decompressed."""
    lines, tensors = split_packed(content)
    text = rng.choice([flip_bits, overwrite, truncate, insert])(b"\n".join(lines), rng)
    return join_packed(text.split(b"\n"), tensors, checksum=False)


def damage_tensors(content: bytes, rng: random.Random) -> bytes:
    """A change of positions and values alone."""
    lines, tensors = split_packed(content)
    damage = rng.choice([flip_bits, flip_bits, overwrite, truncate, insert, swap_blocks])
    return join_packed(lines, damage(tensors, rng), checksum=False)


def damage_positions(content: bytes, rng: random.Random) -> bytes:
    """A few bits among the positions."""
    lines, tensors = split_packed(content)
    changed = bytearray(tensors)
    for _ in range(rng.choice([1, 1, 2, 5])):
        changed[rng.randrange(4 + int.from_bytes(tensors[:4], "little"))] ^= 1 << rng.randrange(8)
    return join_packed(lines, bytes(changed), checksum=False)


MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [
    *(flip_bits, overwrite, replace_character, truncate, insert, swap_blocks, change_length, edit_header),
    edit_architecture,
]
MUTATIONS_OF_CLUSTERS: list[Callable[[bytes, random.Random], bytes]] = [
    *(flip_bits, overwrite, replace_character, truncate, insert, swap_blocks, change_length, edit_header),
    *(edit_line, edit_line, damage_lines, damage_tensors, damage_positions, damage_positions),
]


def _position(content: bytes, rng: random.Random) -> int:
    """Anywhere, and in the header as often as in the tensors."""
    end = min(8 + int.from_bytes(content[:8], "little"), len(content))
    return rng.randrange(end) if rng.random() < 0.5 else rng.randrange(len(content))


def _edit(tree: Any, rng: random.Random) -> None:
    """Replace, remove, rename or add something, at a random place of a JSON tree."""
    places = []
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        places += [(one, key) for key in keys]
        waiting += [one[key] for key in keys if isinstance(one[key], dict | list)]
    owner, key = rng.choice(places)
    _, other_key = other_place = rng.choice(places)
    action = rng.randrange(5)
    if action == 0:
        owner[key] = rng.choice(VALUES)
    elif action == 1:
        del owner[key]
    elif action == 2:
        owner[key] = json.loads(json.dumps(other_place[0][other_key]))
    elif isinstance(owner, list):
        owner.insert(key, rng.choice([*owner, *VALUES]))
    elif action == 3:
        owner[str(rng.choice([other_key, *VALUES]))] = owner.pop(key)
    else:
        owner[str(rng.choice([other_key, *VALUES]))] = rng.choice(VALUES)


def outcome(path: Path, original: torch.nn.Module, x: torch.Tensor, expected: torch.Tensor) -> str:
    try:
        artefact.read(path)
        network = artefact.load(path)
    except ArtefactError:
        return "refused"
    same_code = network.code == original.code and repr(network) == repr(original)
    state, other = network.state_dict(), original.state_dict()
    if not same_code or state.keys() != other.keys() or not all(_equal(state[name], other[name]) for name in state):
        return "another"
    try:
        with torch.no_grad():
            return "same" if torch.equal(network(x), expected) else "another"
    except (RuntimeError, TypeError, ValueError):  # such as a dilation of True
        return "another"


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())


def check_weights(path: Path) -> None:
    """Assert that the weights of a packed network are what the slow reader finds."""
    lines, tensors = split_packed(path.read_bytes())
    table = json.loads(lines[-1])
    sizes = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}
    found = artefact.read_arrays(path)
    expected = storage_reference.unpack(
        tensors,
        [one[1] for one in table.values()],
        [sizes.get(one[-1] if one[2:] else one[0], 1) for one in table.values()],
    )
    for array, values in zip(found.values(), expected, strict=True):
        assert array.reshape(-1).view(f"u{array.itemsize}").tolist() == values


def main(folder: Path, count: int, seed: int, storage: str) -> None:
    warnings.simplefilter("error")
    rng = random.Random(seed)
    path = folder / "original.safetensors"
    network, mutations = (small(), MUTATIONS) if storage == "dense" else (clustered(), MUTATIONS_OF_CLUSTERS)
    artefact.save(path, network, config={"a": [1, 2.5]}, classes=["one", "two"], storage=storage)
    assert artefact.read(path).storage == storage
    content = path.read_bytes()
    original = artefact.load(path)
    x = torch.randn(2, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = original(x)
    address_space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    allowed = 2 * len(content) + CONSTANT
    # An allocation beyond this is a MemoryError, which ends the run.
    resource.setrlimit(resource.RLIMIT_AS, (address_space + allowed, address_space + allowed))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mutant = folder / "mutant.safetensors"
    found: Counter[str] = Counter()
    slowest, start = 0.0, time.perf_counter()
    for number in range(count):
        mutate = mutations[number % len(mutations)]
        changed = mutate(content, rng)
        anew = rng.random() < 0.5
        changed = with_checksum(changed) if anew else changed
        mutant.write_bytes(changed)
        began = time.perf_counter()
        try:
            result = outcome(mutant, original, x, expected)
            seconds = time.perf_counter() - began
            if storage == "clusters" and result != "refused":
                check_weights(mutant)
        except BaseException:
            mutant.rename(folder / "culprit.safetensors")
            print(f"mutation {number}, {mutate.__name__}, checksum computed anew: {anew}", file=sys.stderr)  # noqa: T201
            raise
        slowest = max(slowest, seconds)
        # With the old checksum, only a mutation that changes nothing can be loaded.
        assert anew or (result == "same") == (changed == content), f"mutation {number}, {mutate.__name__}: {result}"
        found[f"{result}, {'right' if anew else 'old'} checksum"] += 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    report = {
        "outcomes": dict(sorted(found.items())),
        "file_bytes": len(content),
        "seconds": round(time.perf_counter() - start, 1),
        "slowest_ms": round(1000 * slowest, 1),
        "memory_grown": grown,
        "memory_allowed": allowed,
    }
    print(json.dumps(report))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
