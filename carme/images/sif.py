"""SIF files: read the header and check that a file is a complete image."""

import errno
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from carme.errors import CarmeError, DeniedError, InputError, MissingError, UnavailableError

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
    """The header of an image file."""

    architecture: str
    """As `uname -m` prints it; empty if unknown."""
    size_bytes: int
    """How large a complete file is, according to its table of contents."""
    signed: bool
    """Whether it has a signature, valid or not."""


def parse_sif(header: bytes, descriptors: bytes) -> Sif:
    """The image that a header and its table of contents describe; InputError if it is no SIF."""
    if len(header) < HEADER.size:
        raise InputError("it is too short for an image file")
    _, magic, _, arch, _, *numbers = HEADER.unpack(header[: HEADER.size])
    if magic != MAGIC:
        raise InputError("it is not a SIF image", "build one with apptainer build")
    _, _, _, total, _, _, _, _ = numbers
    if not 0 < total <= MAX_DESCRIPTORS or len(descriptors) < total * DESCRIPTOR.size:
        raise InputError("it is damaged: its table of contents cannot be read")
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
        raise InputError("it contains no system to start")
    return Sif(ARCHITECTURES.get(arch[:2].decode("ascii", "replace"), ""), end, signed)


def read_sif(path: Path) -> Sif:
    """The header of the file at `path`; a typed error says why it is no image that can be used."""
    try:
        # Not blocking: a pipe in the place of the file must not block the helper.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _not_a_file(path)
            header = file.read(HEADER.size)
            descriptors = b""
            if len(header) == HEADER.size:
                numbers = HEADER.unpack(header)[5:]
                total, offset = numbers[3], numbers[4]
                if 0 < total <= MAX_DESCRIPTORS and 0 <= offset < 2**40:
                    file.seek(offset)
                    descriptors = file.read(total * DESCRIPTOR.size)
    except OSError as error:
        raise _explain(error, path) from error
    try:
        sif = parse_sif(header, descriptors)
    except InputError as error:
        raise InputError(f"{path}: {error.message}", error.hint) from None
    if status.st_size < sif.size_bytes:
        raise InputError(f"{path}: it is incomplete ({status.st_size} of {sif.size_bytes} bytes)")
    return sif


def _not_a_file(path: Path) -> InputError:
    return InputError(f"{path} is not a file", "give the path of a .sif file")


def _explain(error: OSError, path: Path) -> CarmeError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return MissingError(f"there is no file {path}")
    if error.errno in (errno.EACCES, errno.EPERM):
        return DeniedError(
            f"{path}: you may not read this file", f"chmod +r {path}, if it is yours"
        )
    if error.errno in (errno.EISDIR, errno.ENXIO):
        return _not_a_file(path)
    return UnavailableError(f"{path}: {error.strerror}")
