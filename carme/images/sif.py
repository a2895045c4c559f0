"""SIF files: check that a file is a complete image, and read what is in it without starting it."""

import errno
import os
import stat
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from carme.errors import CarmeError, DeniedError, InputError, MissingError, UnavailableError
from carme.images.squashfs import read_directory_table

MAGIC = b"SIF_MAGIC\0"
HEADER = struct.Struct("<32s10s3s3s16s8q")
DESCRIPTOR = struct.Struct("<i?III7q128s384s")
PARTITION = 0x4004
SIGNATURE = 0x4005
PRIMARY_SYSTEM = 2
ENCRYPTED = 5
"""The file system of a partition that needs a key."""
ARCHITECTURES = {"01": "i386", "02": "x86_64", "03": "armv7l", "04": "aarch64", "07": "ppc64le"}
MAX_DESCRIPTORS = 1000


@dataclass(frozen=True)
class Sif:
    """An image file, as far as it can be known without starting it."""

    architecture: str
    """As `uname -m` prints it; empty if unknown."""
    size_bytes: int
    """How large a complete file is, according to its table of contents."""
    signed: bool
    """Whether it has a signature, valid or not."""
    system: tuple[int, int]
    """Where in the file the system begins that is started, and its size in bytes."""
    encrypted: bool
    file_bytes: int = 0
    """The size of the file, which may be more than `size_bytes`."""
    directories: bytes | None = None
    """The directory table of the system (`carme.images.squashfs`); None if it cannot be read."""


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
    end, signed, system, encrypted = 0, False, None, False
    for start in range(0, total * DESCRIPTOR.size, DESCRIPTOR.size):
        kind, used, _, _, _, offset, size, *_, extra = DESCRIPTOR.unpack_from(descriptors, start)
        if not used:
            continue
        if offset < 0 or size < 0:
            raise InputError("it is damaged: its table of contents cannot be read")
        end = max(end, offset + size)
        signed = signed or kind == SIGNATURE
        file_system, purpose = struct.unpack_from("<ii", extra)
        if kind == PARTITION and purpose == PRIMARY_SYSTEM:
            system, encrypted = (offset, size), file_system == ENCRYPTED
    if system is None:
        raise InputError("it contains no system to start")
    architecture = ARCHITECTURES.get(arch[:2].decode("ascii", "replace"), "")
    return Sif(architecture, end, signed, system, encrypted)


def read_sif(path: Path) -> Sif:
    """The image in the file at `path`; a typed error says why it is no image that can be used.

    The file is opened once, so that all checks are of the same file.
    """
    try:
        with _open(path) as file:
            present = os.fstat(file.fileno()).st_size
            sif = parse_sif(*_read_header(file))
            if present < sif.size_bytes:
                raise InputError(f"it is incomplete ({present} of {sif.size_bytes} bytes)")
            directories = read_directory_table(file, *sif.system)
            return replace(sif, file_bytes=present, directories=directories)
    except OSError as error:
        raise _explain(error, path) from error
    except InputError as error:
        raise InputError(f"{path}: {error.message}", error.hint) from None


def _open(path: Path) -> BinaryIO:
    """The regular file at `path`. A pipe or a device is refused without opening it: the former
    could block this process, the latter may do something when it is opened."""
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        return Path(f"/proc/self/fd/{place}").open("rb")
    finally:
        os.close(place)


def _read_header(file: BinaryIO) -> tuple[bytes, bytes]:
    """The header and the table of contents, as far as they are there."""
    header = file.read(HEADER.size)
    if len(header) == HEADER.size:
        numbers = HEADER.unpack(header)[5:]
        total, offset = numbers[3], numbers[4]
        if 0 < total <= MAX_DESCRIPTORS and 0 <= offset < 2**40:
            file.seek(offset)
            return header, file.read(total * DESCRIPTOR.size)
    return header, b""


def _not_a_file(path: Path) -> InputError:
    return InputError(f"{path} is not a file", "give the path of a .sif file")


def _explain(error: OSError, path: Path) -> CarmeError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return MissingError(f"there is no file {path}")
    if error.errno in (errno.EACCES, errno.EPERM):
        return DeniedError(
            f"{path}: you may not read this file", f"chmod +r {path}, if it is yours"
        )
    if error.errno in (errno.EISDIR, errno.ELOOP):
        return _not_a_file(path)
    return UnavailableError(f"{path}: {error.strerror}")
