"""IDX files: what struct writes is read back; everything else is a DataError."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayesprune.data import DataError, read
from bayesprune.data.contents import Content, DataFile, FolderSource, read_file
from bayesprune.data.idx import parse_idx

GOOD = struct.pack(">HBB3I", 0, 8, 3, 4, 3, 2) + bytes(range(24))


def content(data: bytes) -> Content:
    return Content(data, "some-file", "bayesprune data fetch fashion-mnist")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_reads_back_what_struct_wrote(shape, random):
    body = random.randbytes(int(np.prod(shape)))
    data = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + body
    array = parse_idx(content(data), tuple(shape))
    assert array.shape == tuple(shape)
    assert array.tobytes() == body
    assert array.flags.writeable


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ["header of 16 bytes", "0 bytes"]),
        (GOOD[:15], ["header of 16 bytes", "15 bytes"]),
        (b"\x00\x00\x0d\x03" + GOOD[4:], ["magic", "00000803", "00000d03"]),
        (
            struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1),
            ["dimensions (4, 3, 2)", "4294967295"],
        ),
        (GOOD[:-1], ["24 bytes after the header", "23"]),
        (GOOD + b"\x00", ["24 bytes after the header", "25"]),
    ],
)
def test_error_says_what_was_expected_found_and_what_to_run(data, words):
    with pytest.raises(DataError) as error:
        parse_idx(content(data), (4, 3, 2))
    for word in ["some-file", "bayesprune data fetch fashion-mnist", *words]:
        assert word in str(error.value)


@given(st.integers(0, len(GOOD) - 1))
def test_every_truncation_is_a_data_error(length):
    with pytest.raises(DataError):
        parse_idx(content(GOOD[:length]), (4, 3, 2))


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_data_error(data):
    with pytest.raises(DataError):
        parse_idx(content(data), (400, 300, 200))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 200), byte=st.integers(0, 255), cut=st.one_of(st.none(), st.integers(0, 200)))
def test_any_damage_to_the_gzip_file_is_found_or_harmless(tmp_path, at, byte, cut):
    body = gzip.compress(GOOD, mtime=0)
    changed = bytearray(body)
    changed[at % len(body)] = byte
    path = tmp_path / "f.gz"
    path.write_bytes(bytes(changed[:cut]))
    try:
        found = read_file(path, DataFile("f.gz", len(GOOD)), "remedy").data
    except DataError:
        return
    assert found == GOOD  # such as another time stamp in the gzip header


def test_reads_the_made_up_data_set(made_idx, tmp_path):
    raw = read(made_idx.spec, made_idx.write(tmp_path)).raw
    np.testing.assert_array_equal(raw.train.images[:, 0], made_idx.arrays["train images"])
    np.testing.assert_array_equal(raw.train.labels, made_idx.arrays["train labels"])
    np.testing.assert_array_equal(raw.test.images[:, 0], made_idx.arrays["test images"])
    np.testing.assert_array_equal(raw.test.labels, made_idx.arrays["test labels"])
    assert raw.classes == ("red", "green", "blue")


def test_accepts_another_gzip_wrapping_but_not_other_content(made_idx, tmp_path):
    folder = made_idx.write(tmp_path) / made_idx.spec.folder
    images = folder / "train-images.gz"
    plain = gzip.decompress(images.read_bytes())
    images.write_bytes(gzip.compress(plain, compresslevel=1, mtime=5))
    read(made_idx.spec, tmp_path)
    images.write_bytes(gzip.compress(plain[:-1] + bytes([plain[-1] ^ 1])))
    with pytest.raises(DataError, match=r"train-images.gz: expected content with MD5 \w+, found MD5"):
        read(made_idx.spec, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-9], "ended before"),
        (lambda data: data[:-8] + bytes(8), "CRC check failed"),
        (lambda data: b"not gzip", "Not a gzipped file"),
        (lambda data: gzip.compress(gzip.decompress(data) + b"!"), "found more"),
        (lambda data: gzip.compress(gzip.decompress(data)[:-1]), "found only 27"),
        (lambda data: gzip.compress(bytes(10**8)), "found more"),
    ],
)
def test_damaged_file_is_named_with_the_command_that_fixes_it(made_idx, tmp_path, change, message):
    path = made_idx.write(tmp_path) / made_idx.spec.folder / "train-labels.gz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError) as error:
        read(made_idx.spec, tmp_path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert f"bayesprune data fetch fashion-mnist --data-dir {tmp_path}" in str(error.value)


def test_a_file_that_cannot_be_read_is_a_data_error(tmp_path: Path):
    (tmp_path / "f.gz").mkdir()
    with pytest.raises(DataError, match="directory"):
        read_file(tmp_path / "f.gz", DataFile("f.gz", 3), "remedy")
    with pytest.raises(DataError, match=r"g\.gz: expected a file, found nothing"):
        FolderSource(tmp_path, "remedy").read([DataFile("g.gz", 3)])


def test_a_label_out_of_range_names_the_record(made_idx, tmp_path):
    contents = FolderSource(made_idx.write(tmp_path) / "made-idx", "remedy").read(made_idx.spec.files)
    labels = contents["test-labels.gz"]
    contents["test-labels.gz"] = Content(labels.data[:-1] + b"\x07", labels.path, labels.remedy)
    with pytest.raises(DataError, match="expected labels from 0 to 2, found 7 in record 5"):
        made_idx.spec.parse(contents)
