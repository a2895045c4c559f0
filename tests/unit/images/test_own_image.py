"""A user's own image, as far as it can be checked without starting it."""

import os
from pathlib import Path

import pytest

from carme.errors import DeniedError, InputError
from carme.images.own_image import check_own_image, check_path
from support.images import sif_bytes

NOT_THERE = Path("/nonexistent/apptainer")


@pytest.mark.parametrize(
    "text",
    ["", "x.sif", "~/x.sif", "/a\nb.sif", "/a:b.sif", "/a,b.sif", "/$(id).sif", "/a'b", "/" * 2000],
)
def test_text_that_is_no_path(text: str) -> None:
    with pytest.raises(InputError):
        check_path(text)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        check_path(f"{tmp_path}/x.sif")
    with pytest.raises(InputError, match="not a file"):
        check_path(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a file"):
        check_path(f"{tmp_path}/pipe")


def test_not_allowed_here(tmp_path: Path) -> None:
    with pytest.raises(DeniedError, match="catalogue only"):
        check_own_image(f"{tmp_path}/x.sif", NOT_THERE, allowed=False)


def test_not_an_image(tmp_path: Path) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(b"hello" * 100)
    with pytest.raises(InputError, match="not a SIF"):
        check_own_image(str(path), NOT_THERE)
    path.write_bytes(sif_bytes()[:6000])
    with pytest.raises(InputError, match="cut short"):
        check_own_image(str(path), NOT_THERE)
    path.write_bytes(sif_bytes(arch=b"07\0"))
    with pytest.raises(InputError, match="is for ppc64le"):
        check_own_image(str(path), NOT_THERE)
