"""Names in a squashfs, and file systems that were made to hurt their reader."""

import io
import struct
import subprocess
import time
import tracemalloc
import zlib
from pathlib import Path
from shutil import which

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme.images.squashfs import (
    BLOCK_BYTES,
    MAX_BLOCKS,
    SUPERBLOCK,
    has_name,
    matching_names,
    read_directory_table,
)
from support.images import SESSION_NAMES, squashfs_bytes, squashfs_of


def table_of(data: bytes, start: int = 0) -> bytes | None:
    return read_directory_table(io.BytesIO(data), start, len(data) - start)


def test_names_of_many_blocks() -> None:
    many = {f"module-{number}.py": 2 for number in range(3000)}
    data = squashfs_bytes({**many, **SESSION_NAMES})
    table = table_of(bytes(1000) + data, 1000)
    assert table
    assert len(table) > 5 * BLOCK_BYTES
    assert has_name(table, "module-2999.py")
    assert has_name(table, "jupyter-lab"), "a link"
    assert not has_name(table, "module")
    assert not has_name(table, "jupyterhub-6.1.0.dist-info"), "a folder is no program"
    assert matching_names(table, "module-29.7[.]py") == {f"module-29{n}7.py" for n in range(10)}


@pytest.mark.skipif(not which("mksquashfs"), reason="squashfs-tools is not installed")
@pytest.mark.parametrize(
    "options", [(), ("-comp", "xz"), ("-comp", "lz4"), ("-noI",), ("-no-exports",)]
)
def test_a_real_file_system(tmp_path: Path, options: tuple[str, ...]) -> None:
    root = tmp_path / "root"
    for folder in range(40):
        (root / f"deep/{folder}").mkdir(parents=True)
        for number in range(30):
            (root / f"deep/{folder}/file-{folder}-{number}").write_text("x" * number)
    (root / "bin").mkdir()
    (root / "bin/link").symlink_to("elsewhere")
    command = ["mksquashfs", root, tmp_path / "x.sqfs", "-quiet", "-no-progress", *options]
    subprocess.run(command, check=True, capture_output=True)
    table = table_of((tmp_path / "x.sqfs").read_bytes())
    assert table
    names = matching_names(table, "file-[0-9]+-[0-9]+")
    assert names == {f"file-{folder}-{number}" for folder in range(40) for number in range(30)}
    assert has_name(table, "link")
    assert not has_name(table, "elsewhere")


def test_other_file_systems_and_compressions_are_not_read() -> None:
    assert table_of(b"") is None
    assert table_of(b"x" * 5000) is None
    for compressor in (0, 2, 3, 6, 99):
        assert table_of(squashfs_bytes(SESSION_NAMES, compressor)) is None


def test_blocks_that_unpack_to_gigabytes_are_cut() -> None:
    """A metadata block has 8 KiB, whatever its compressed data say."""
    block = zlib.compress(bytes(30 * 2**20), 9)
    data = bytearray(squashfs_of(b"x"))
    end = SUPERBLOCK.size + 2 * (2 + len(block))
    data[SUPERBLOCK.size :] = (struct.pack("<H", len(block)) + block) * 2 + struct.pack("<Q", end)
    fields = list(SUPERBLOCK.unpack(data[: SUPERBLOCK.size]))
    fields[13] = end
    data[: SUPERBLOCK.size] = SUPERBLOCK.pack(*fields)
    assert len(block) < 0x8000
    tracemalloc.start()
    table = table_of(bytes(data))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert table == bytes(2 * BLOCK_BYTES)
    assert peak_bytes < 2**21


def test_too_many_blocks_are_not_read() -> None:
    limit = MAX_BLOCKS * BLOCK_BYTES
    assert len(table_of(squashfs_of(bytes(limit))) or b"") == limit
    started = time.monotonic()
    assert table_of(squashfs_of(bytes(limit + 1))) is None
    assert time.monotonic() - started < 10
    empty = squashfs_of(b"x")
    blocks = struct.pack("<H", 0x8000) * 10**6  # a million blocks of nothing
    fields = list(SUPERBLOCK.unpack(empty[: SUPERBLOCK.size]))
    fields[13] = SUPERBLOCK.size + len(blocks)
    assert table_of(SUPERBLOCK.pack(*fields) + blocks + struct.pack("<Q", fields[13])) is None


@pytest.mark.parametrize(
    ("block", "plain"),
    [
        (b"\x30abc", b"abc"),
        (b"\x30abc\x03\x00\x10!", b"abcabca!"),
        (b"\x1fa\x01\x00\x05\x10!", b"a" * 25 + b"!"),
        (b"\x1fa\x01\x00" + b"\xff" * 200 + b"\x00\x10!", None),  # 51 kB
        (b"\x10a\x02\x00\x10!", None),  # a copy from before the beginning
        (b"\x10a\x00\x00\x10!", None),
        (b"\xf0", None),  # cut in its length
    ],
)
def test_lz4(block: bytes, plain: bytes | None) -> None:
    data = bytearray(squashfs_of(b"x"))
    fields = list(SUPERBLOCK.unpack(data[: SUPERBLOCK.size]))
    fields[5], fields[13] = 5, SUPERBLOCK.size + 2 + len(block)
    table = struct.pack("<H", len(block)) + block + struct.pack("<Q", fields[13])
    assert table_of(SUPERBLOCK.pack(*fields) + table) == plain


@given(st.data())
def test_any_change_gives_an_answer(data: st.DataObject) -> None:
    file = bytearray(squashfs_bytes(SESSION_NAMES))
    file[20] = data.draw(st.sampled_from([1, 4, 5]))  # the compressor
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, len(file) - 1))
        file[place] = data.draw(st.integers(0, 255))
    table = table_of(bytes(file[: data.draw(st.integers(0, len(file)))]))
    assert table is None or len(table) <= MAX_BLOCKS * BLOCK_BYTES
