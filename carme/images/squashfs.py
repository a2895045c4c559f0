"""Names of the files in a squashfs file system, read from its directory table: nothing is mounted,
unpacked or started, and a hostile file costs a bounded amount of time and memory."""

import lzma
import re
import struct
import zlib
from collections.abc import Callable
from typing import BinaryIO

MAGIC = 0x73717368
SUPERBLOCK = struct.Struct("<5I6H8Q")
BLOCK_BYTES = 8192
"""Of an uncompressed metadata block; only the last block of a table is smaller."""
MAX_BLOCKS = 4096
"""32 MiB of directories: a million files. The names of a larger system are not read."""
_XZ_MEMORY_BYTES = 2**26
_STORED = 0x8000
_NO_TABLE = 2**64 - 1
_DIRECTORY, _SYMBOLIC_LINK = 1, 3
# An entry ends with its type, the length of its name minus one, and the name.
_ENTRY = struct.Struct("<HH")


def _inflate(block: bytes) -> bytes:
    return zlib.decompressobj().decompress(block, BLOCK_BYTES)


def _decompress_xz(block: bytes) -> bytes:
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_BYTES)
    return decompressor.decompress(block, BLOCK_BYTES)


def _decompress_lz4(block: bytes) -> bytes:
    """A block of LZ4, which the standard library does not have: Carme's images are packed with it.

    It is a sequence of literal bytes and of copies of earlier output.
    """
    output = bytearray()
    position = 0

    def length(count: int) -> int:
        """A length whose first 15 are in a token, and the rest in the bytes after it."""
        nonlocal position
        more = 255 if count == 15 else 0
        while more == 255:
            more = block[position]
            position += 1
            count += more
        return count

    while position < len(block):
        token = block[position]
        position += 1
        literals = length(token >> 4)
        output += block[position : position + literals]
        position += literals
        if position >= len(block):
            break
        distance = int.from_bytes(block[position : position + 2], "little")
        position += 2
        copied = 4 + length(token & 15)
        if not 0 < distance <= len(output) or len(output) + copied > BLOCK_BYTES:
            raise ValueError
        repeated = bytes(output[len(output) - distance :])
        output += (repeated * -(-copied // distance))[:copied]
    return bytes(output[:BLOCK_BYTES])


DECOMPRESSORS: dict[int, Callable[[bytes], bytes]] = {
    1: _inflate,
    4: _decompress_xz,
    5: _decompress_lz4,
}
"""Number in the superblock to its function; lzo and zstd cannot be read."""


def read_directory_table(file: BinaryIO, start: int, size: int) -> bytes | None:
    """The table of the file system of `size` bytes that begins at `start`; None if it is not a
    squashfs, or too large, damaged or compressed in a way that cannot be read here."""
    try:
        file.seek(start)
        fields = SUPERBLOCK.unpack(file.read(SUPERBLOCK.size))
        magic, compressor, major = fields[0], fields[5], fields[9]
        _, _, id_table, _, _, table, fragment_table, export_table = fields[11:]
        decompress = DECOMPRESSORS.get(compressor)
        if magic != MAGIC or major != 4 or decompress is None:
            return None
        end = min(
            _first_block(file, start, size, index)
            for index in (fragment_table, export_table, id_table)
            if index != _NO_TABLE
        )
        if not SUPERBLOCK.size <= table < end <= size:
            return None
        file.seek(start + table)
        return _unpack(file.read(min(end - table, MAX_BLOCKS * (BLOCK_BYTES + 2))), decompress)
    except (ValueError, IndexError, OverflowError, struct.error, zlib.error, lzma.LZMAError):
        return None


def _first_block(file: BinaryIO, start: int, size: int, index: int) -> int:
    """Where a table begins, whose blocks are listed at `index`."""
    if index + 8 > size:
        raise ValueError
    file.seek(start + index)
    return int.from_bytes(file.read(8), "little")


def _unpack(raw: bytes, decompress: Callable[[bytes], bytes]) -> bytes | None:
    """The blocks of a table, one after the other; None if there are too many."""
    table = bytearray()
    position = 0
    for _ in range(MAX_BLOCKS):
        (header,) = struct.unpack_from("<H", raw, position)
        length = header & ~_STORED
        block = raw[position + 2 : position + 2 + length]
        table += block if header & _STORED else decompress(block)
        position += 2 + length
        if position >= len(raw) or len(table) % BLOCK_BYTES:
            return bytes(table)
    return None


def has_name(table: bytes, name: str) -> bool:
    """Whether any folder of the file system has a file or a link of this name."""
    return any(
        _ENTRY.pack(kind, len(name) - 1) + name.encode() in table
        for kind in range(_DIRECTORY + 1, _SYMBOLIC_LINK + 1)
    )


def matching_names(table: bytes, pattern: str) -> set[str]:
    """The names of files and folders that match `pattern`, which must not match parts of names."""
    entry = re.compile(rb"[\x01\x02]\0(..)(" + pattern.encode() + rb")", re.DOTALL)
    return {
        found[2].decode("ascii", "replace")
        for found in entry.finditer(table)
        if int.from_bytes(found[1], "little") == len(found[2]) - 1
    }
