"""Small image files and catalogue entries for tests."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from carme.images.catalogue import BuildRecord, Image, VerificationResult, file_digest
from carme.images.sif import DESCRIPTOR, HEADER, MAGIC, PARTITION, SIGNATURE


def sif_bytes(payload: bytes = b"x" * 4096, arch: bytes = b"02\0", signed: bool = False) -> bytes:
    """The bytes of a SIF file with one system partition, as Apptainer lays it out."""
    extra = (1).to_bytes(4, "little") + (2).to_bytes(4, "little") + arch
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
