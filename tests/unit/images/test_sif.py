"""The outside of SIF files."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme.errors import InputError
from carme.images.sif import HEADER, parse_sif, read_sif
from support.images import sif_bytes


def test_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(sif_bytes())
    sif = read_sif(path)
    assert (sif.architecture, sif.size_bytes, sif.signed) == ("x86_64", 8192, False)
    path.write_bytes(sif_bytes(arch=b"04\0", signed=True))
    sif = read_sif(path)
    assert (sif.architecture, sif.signed) == ("aarch64", True)


@pytest.mark.parametrize("length", [0, 1, 40, HEADER.size - 1, HEADER.size, 1000, 4096, 8191])
def test_truncated_file(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(sif_bytes()[:length])
    with pytest.raises(InputError, match=r"x\.sif: it is (too short|incomplete|damaged)"):
        read_sif(path)


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(b"\x7fELF" + bytes(5000))
    with pytest.raises(InputError, match="not a SIF"):
        read_sif(path)
    with pytest.raises(InputError, match="is not a file"):
        read_sif(tmp_path)


@given(st.binary(max_size=400), st.binary(max_size=2000), st.booleans())
def test_any_bytes_give_an_answer_or_an_input_error(head: bytes, table: bytes, real: bool) -> None:
    data = sif_bytes()[: HEADER.size - 64] + head if real else head
    with suppress(InputError):
        parse_sif(data, table)
