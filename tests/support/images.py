"""Small image files and catalogue entries for tests."""

import lzma
import struct
import subprocess
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from carme.images.catalogue import BuildRecord, Image, VerificationResult, file_digest
from carme.images.sif import DESCRIPTOR, HEADER, MAGIC, PARTITION, SIGNATURE
from carme.images.squashfs import BLOCK_BYTES, SUPERBLOCK
from carme.images.squashfs import MAGIC as SQUASHFS_MAGIC
from support.recipes import tiny_root

SESSION_NAMES = {"jupyterhub-singleuser": 2, "jupyter-lab": 3, "jupyterhub-6.1.0.dist-info": 1}
"""Name to kind (1 folder, 2 file, 3 link) of what a session needs in an image."""


def squashfs_bytes(names: dict[str, int], compressor: int = 1) -> bytes:
    """The parts of a squashfs that hold the names of its files, compressed as gzip or xz do."""
    table = b""
    for name, kind in names.items():
        entry = struct.pack("<HhHH", 0, 0, kind, len(name) - 1) + name.encode()
        table += struct.pack("<III", 0, 0, 1) + entry
    return squashfs_of(table, compressor)


def squashfs_of(table: bytes, compressor: int = 1) -> bytes:
    """A squashfs with this directory table."""
    compress = {1: zlib.compress, 4: lzma.compress}.get(compressor, zlib.compress)
    blocks = b""
    for start in range(0, len(table), BLOCK_BYTES):
        plain = table[start : start + BLOCK_BYTES]
        packed = compress(plain)
        stored = len(packed) >= len(plain)
        block = plain if stored else packed
        blocks += struct.pack("<H", len(block) | (0x8000 if stored else 0)) + block
    begin = SUPERBLOCK.size
    end = begin + len(blocks)
    none = 2**64 - 1
    numbers = [SQUASHFS_MAGIC, 1, 0, 2**17, 0, compressor, 17, 0, 1, 4, 0]
    numbers += [0, end + 8, end, none, begin, begin, none, none]
    return SUPERBLOCK.pack(*numbers) + blocks + struct.pack("<Q", end)


def sif_bytes(
    payload: bytes = b"x" * 4096,
    arch: bytes = b"02\0",
    signed: bool = False,
    file_system: int = 1,
) -> bytes:
    """The bytes of a SIF file with one system partition, as Apptainer lays it out."""
    extra = file_system.to_bytes(4, "little") + (2).to_bytes(4, "little") + arch
    start = 4096
    rows = [
        DESCRIPTOR.pack(PARTITION, True, 1, 1, 0, start, len(payload), 0, 0, 0, 0, 0, b"", extra)
    ]
    if signed:
        at = start + len(payload)
        rows.append(DESCRIPTOR.pack(SIGNATURE, True, 2, 1, 1, at, 0, 0, 0, 0, 0, 0, b"", b""))
    rows.append(DESCRIPTOR.pack(0, False, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b"", b""))
    numbers = [0, 0, 1, len(rows), HEADER.size, len(rows) * DESCRIPTOR.size, start, len(payload)]
    header = HEADER.pack(b"#!/usr/bin/env run-singularity\n", MAGIC, b"01", arch, b"", *numbers)
    return (header + b"".join(rows)).ljust(start, b"\0") + payload


def trapped_image(folder: Path, apptainer: Path, home: Path, mark: str) -> Path:
    """A real image with the names that a session needs, and with a trap: whenever anything in it is
    run, it writes the file `mark` to `home` and to /tmp, and leaves the process `sleep 98765`."""
    root = tiny_root(folder)
    (root / "bin/sh").rename(root / "bin/real-sh")
    trap = f"""for place in {home} /tmp; do : >"$place/{mark}"; done 2>/dev/null
/bin/sleep 98765 </dev/null >/dev/null 2>&1 &
"""
    (root / "bin/sh").write_text(f'#!/bin/real-sh\n{trap}exec /bin/real-sh "$@"\n')
    # Apptainer runs these scripts with a shell of its own before any program of the image.
    (root / ".singularity.d/env").mkdir(parents=True)
    (root / ".singularity.d/env/98-trap.sh").write_text(trap)
    for name in ("jupyterhub-singleuser", "jupyter-lab", "python3"):
        (root / "bin" / name).write_text("#!/bin/sh\necho 6.1.0\n")
    for name in ("sh", "jupyterhub-singleuser", "jupyter-lab", "python3"):
        (root / "bin" / name).chmod(0o755)
    (root / "lib/jupyterhub-6.1.0.dist-info").mkdir(mode=0o755)
    image = folder / "trapped.sif"
    subprocess.run([apptainer, "build", image, root], check=True, capture_output=True, timeout=120)
    image.chmod(0o644)
    return image


def make_image(folder: Path, name: str = "base", version: str = "1.0", **values: Any) -> Image:
    """An entry whose file lies in `folder`."""
    content = values.pop("content", f"{name}:{version}".encode() * 500)
    entry = {
        "name": name,
        "version": version,
        "title": name.title(),
        "file": f"{name}-{version}-{values.get('recipe_hash', 'abc')}.sif",
        "recipe_hash": "abc",
        "built": BuildRecord(at=datetime(2026, 1, 1, tzinfo=UTC), engine="apptainer 1.4.5"),
        "verified": VerificationResult(at=datetime(2026, 1, 1, tzinfo=UTC), passed=True),
        **values,
    }
    path = folder / entry["file"]
    path.write_bytes(sif_bytes(content))
    return Image(digest=file_digest(path), size_bytes=path.stat().st_size, **entry)
