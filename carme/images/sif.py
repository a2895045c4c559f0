"""The outside of a SIF file: is it one, is it whole, what is it for. Reads a few kilobytes."""

import struct
from dataclasses import dataclass
from pathlib import Path

from carme.errors import InputError

MAGIC = b"SIF_MAGIC\0"
HEADER = struct.Struct("<32s10s3s3s16s8q")
DESCRIPTOR = struct.Struct("<i?III7q128s384s")
PARTITION = 0x4004
SIGNATURE = 0x4005
PRIMARY_SYSTEM = 2
ARCHITECTURES = {"01": "i386", "02": "x86_64", "03": "armv7l", "04": "aarch64", "07": "ppc64le"}
MAX_DESCRIPTORS = 1000


@dataclass(frozen=True)
class Sif:
    """What the header of an image says."""

    architecture: str
    """As `uname -m` has it; empty when unknown."""
    size_bytes: int
    """How long the file has to be for all that it announces."""
    signed: bool
    """Whether it carries a signature, right or wrong."""


def parse_sif(header: bytes, descriptors: bytes) -> Sif:
    """What a file's header and table of contents say; InputError when it is not a SIF."""
    if len(header) < HEADER.size:
        raise InputError("it is too short for an image file")
    _, magic, _, arch, _, *numbers = HEADER.unpack(header[: HEADER.size])
    if magic != MAGIC:
        raise InputError("it is not a SIF image")
    _, _, _, total, _, _, _, _ = numbers
    if not 0 < total <= MAX_DESCRIPTORS or len(descriptors) < total * DESCRIPTOR.size:
        raise InputError("it is damaged: its table of contents is not readable")
    end, signed, bootable = 0, False, False
    for start in range(0, total * DESCRIPTOR.size, DESCRIPTOR.size):
        kind, used, _, _, _, offset, size, *_, extra = DESCRIPTOR.unpack_from(descriptors, start)
        if not used:
            continue
        end = max(end, offset + size)
        signed = signed or kind == SIGNATURE
        if kind == PARTITION and struct.unpack_from("<ii", extra)[1] == PRIMARY_SYSTEM:
            bootable = True
    if not bootable:
        raise InputError("it holds no system to start")
    return Sif(ARCHITECTURES.get(arch[:2].decode("ascii", "replace"), ""), end, signed)


def read_sif(path: Path) -> Sif:
    """The header of the file at `path`; InputError when it is no SIF or not all of one."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER.size)
            descriptors = b""
            if len(header) == HEADER.size:
                numbers = HEADER.unpack(header)[5:]
                total, offset = numbers[3], numbers[4]
                if 0 < total <= MAX_DESCRIPTORS and 0 <= offset < 2**40:
                    file.seek(offset)
                    descriptors = file.read(total * DESCRIPTOR.size)
            found = parse_sif(header, descriptors)
            length = file.seek(0, 2)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except InputError as error:
        raise InputError(f"{path}: {error.message}") from None
    if length < found.size_bytes:
        raise InputError(f"{path}: it is cut short ({length} of {found.size_bytes} bytes)")
    return found
