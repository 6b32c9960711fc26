"""CIFAR's binary files and archives: read back exactly, or a DataError."""

import contextlib
import gzip
import io
import tarfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayesprune.data import DataError, read
from bayesprune.data.cifar import parse_cifar
from bayesprune.data.contents import ArchiveSource, Content
from bayesprune.data.spec import parse_names


def content(data):
    return Content(data, "some-file", "bayesprune data fetch cifar10")


def assert_is_made(raw, made):
    for part, names in (("train", ["batch_1.bin", "batch_2.bin"]), ("test", ["test.bin"])):
        images = np.concatenate([made.arrays[f"{name} images"] for name in names])
        labels = np.concatenate([made.arrays[f"{name} labels"] for name in names])
        np.testing.assert_array_equal(getattr(raw, part).images, images)
        np.testing.assert_array_equal(getattr(raw, part).labels, labels)
    assert raw.classes == ("a", "b", "c", "d")


def test_reads_unpacked_files_and_ignores_the_coarse_label(made_cifar, tmp_path):
    assert_is_made(read(made_cifar.spec, made_cifar.write(tmp_path)).raw, made_cifar)


def test_reads_the_archive_without_unpacking_it(made_cifar, tmp_path):
    (tmp_path / "made.tar.gz").write_bytes(made_cifar.archive)
    reading = read(made_cifar.spec, tmp_path)
    assert_is_made(reading.raw, made_cifar)
    assert reading.source == str(tmp_path / "made.tar.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["made.tar.gz"]


def test_unpacked_files_come_before_the_archive(made_cifar, tmp_path):
    made_cifar.write(tmp_path)
    (tmp_path / "made.tar.gz").write_bytes(b"not read")
    assert read(made_cifar.spec, tmp_path).source == str(tmp_path / "made-cifar")


@given(st.binary(max_size=100), st.integers(1, 2))
def test_arbitrary_bytes_give_whole_records_with_valid_labels_or_a_data_error(data, label_bytes):
    record = label_bytes + 12
    labels = data[label_bytes - 1 :: record]
    valid = len(data) % record == 0 and all(label < 4 for label in labels)
    try:
        part = parse_cifar(content(data), (3, 2, 2), label_bytes, 4)
    except DataError:
        assert not valid
    else:
        assert valid
        assert part.labels.tolist() == list(labels)
        assert part.images.shape == (len(data) // record, 3, 2, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "expected 98 bytes of content, found only 97"),
        (lambda data: data + b"\x00", "expected 98 bytes of content, found more"),
        (lambda data: data[:-14], "found only 84"),
        (lambda data: data[:1] + b"\x04" + data[2:], "expected labels from 0 to 3, found 4 in record 0"),
    ],
)
def test_damaged_file_is_named_with_the_command_that_fixes_it(made_cifar, tmp_path, change, message):
    path = made_cifar.write(tmp_path) / "made-cifar" / "batch_1.bin"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError) as error:
        read(made_cifar.spec, tmp_path)
    assert f"{path}: " in str(error.value)
    assert message in str(error.value)
    assert f"bayesprune data fetch cifar100 --data-dir {tmp_path}" in str(error.value)


@pytest.mark.parametrize("text", [b"a\nb\nc", b"a\nb\nc\nc\n", b"\xff\nb\nc\nd", b"a\nb\nc\n\x07d"])
def test_bad_class_names_are_a_data_error(text):
    with pytest.raises(DataError, match="some-file"):
        parse_names(content(text), 4)


def link(name, kind):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    return info


def test_archive_members_that_are_links_or_repeated_or_missing_are_refused(made_cifar, tmp_path):
    path = tmp_path / "made.tar.gz"
    source = ArchiveSource(path, "made-cifar", "remedy")
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        made_cifar.files.pop("test.bin", None)
        path.write_bytes(made_cifar.pack([link("made-cifar/test.bin", kind)]))
        with pytest.raises(DataError, match=r"test\.bin: expected a regular file, found a link"):
            source.read(made_cifar.spec.files)
    path.write_bytes(made_cifar.pack())
    with pytest.raises(DataError, match=r"expected a member made-cifar/test\.bin, found none"):
        source.read(made_cifar.spec.files)


def test_members_elsewhere_in_the_archive_are_never_looked_at(made_cifar, tmp_path):
    stray = [link("../../evil", tarfile.SYMTYPE), link("/abs", tarfile.LNKTYPE), link("other/test.bin", b"0")]
    (tmp_path / "made.tar.gz").write_bytes(made_cifar.pack(stray))
    assert_is_made(read(made_cifar.spec, tmp_path).raw, made_cifar)
    assert [path.name for path in tmp_path.iterdir()] == ["made.tar.gz"]


def test_archive_with_wrong_sizes_or_two_members_of_a_name_is_refused(made_cifar, tmp_path):
    path = tmp_path / "made.tar.gz"
    path.write_bytes(made_cifar.pack(test__bin=b"short"))
    with pytest.raises(DataError, match=r"member made-cifar/test\.bin: expected 56 bytes .* found only 5"):
        read(made_cifar.spec, tmp_path)
    body = made_cifar.files["test.bin"]
    again = tarfile.TarInfo("./made-cifar/test.bin")
    again.size = len(body)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for _ in range(2):
            archive.addfile(again, io.BytesIO(body))
    path.write_bytes(gzip.compress(buffer.getvalue()))
    with pytest.raises(DataError, match="expected one member of that name, found two"):
        read(made_cifar.spec, tmp_path)


def test_an_archive_that_unzips_to_far_too_much_is_refused_early(made_cifar, tmp_path):
    bomb = tarfile.TarInfo("readme")
    bomb.size = 10**12
    path = tmp_path / "made.tar.gz"
    path.write_bytes(gzip.compress(bomb.tobuf() + bytes(40 << 20), compresslevel=1))
    with pytest.raises(DataError, match="more than 168"):
        read(made_cifar.spec, tmp_path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
    cut=st.one_of(st.none(), st.integers(0, 6000)),
    inside=st.booleans(),
)
def test_any_damage_to_the_archive_is_a_data_error_or_harmless(made_cifar, tmp_path, changes, cut, inside):
    body = bytearray(gzip.decompress(made_cifar.archive) if inside else made_cifar.archive)
    headers = 512 * 8  # damage in headers is the interesting kind
    for at, byte in changes:
        body[at % min(len(body), headers)] = byte
    data = bytes(body[:cut])
    (tmp_path / "made.tar.gz").write_bytes(gzip.compress(data, 1) if inside else data)
    with contextlib.suppress(DataError):
        raw = read(made_cifar.spec, tmp_path).raw
        assert raw.train.images.shape == (12, 3, 2, 2)
        assert raw.train.labels.max() < 4
