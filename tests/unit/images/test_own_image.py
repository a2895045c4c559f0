"""A user's own image, as far as it can be checked without starting it."""

import os
from pathlib import Path

import pytest

from carme.errors import DeniedError, InputError, MissingError, UnavailableError
from carme.helper.client import HelperClient
from carme.images import own_image
from carme.images.own_image import check_own_image, real_path
from support.images import sif_bytes

NOT_THERE = Path("/nonexistent/apptainer")


@pytest.mark.parametrize(
    "text",
    ["", "x.sif", "~/x.sif", "/a\nb.sif", "/a:b.sif", "/a,b.sif", "/$(id).sif", "/a'b", "/" * 2000],
)
def test_text_that_is_no_path(text: str) -> None:
    with pytest.raises(InputError):
        real_path(text)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="there is no file"):
        check_own_image(f"{tmp_path}/x.sif", NOT_THERE)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(MissingError, match="there is no file"):
        check_own_image(f"{tmp_path}/text/x.sif", NOT_THERE)
    with pytest.raises(InputError, match="not a file"):
        check_own_image(str(tmp_path), NOT_THERE)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a file"):
        check_own_image(f"{tmp_path}/pipe", NOT_THERE)


def test_a_link_is_resolved(tmp_path: Path) -> None:
    image, link = tmp_path / "base.sif", tmp_path / "latest.sif"
    image.write_bytes(sif_bytes())
    link.symlink_to(image)
    own = check_own_image(str(link), None)
    assert (own.path, own.size_bytes) == (image, image.stat().st_size)


def test_not_allowed_here(tmp_path: Path) -> None:
    with pytest.raises(DeniedError, match="catalogue only"):
        check_own_image(f"{tmp_path}/x.sif", NOT_THERE, allowed=False)


def test_not_an_image(tmp_path: Path) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(b"hello" * 100)
    with pytest.raises(InputError, match="not a SIF"):
        check_own_image(str(path), NOT_THERE)
    path.write_bytes(sif_bytes()[:6000])
    with pytest.raises(InputError, match="incomplete"):
        check_own_image(str(path), NOT_THERE)
    path.write_bytes(sif_bytes(arch=b"07\0"))
    with pytest.raises(InputError, match="is for ppc64le"):
        check_own_image(str(path), NOT_THERE)


def test_a_slow_image_is_given_up_before_the_hub_gives_up_the_helper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HelperClient.timeout_seconds > own_image.CHECK_SECONDS
    monkeypatch.setattr(own_image, "CHECK_SECONDS", 0.2)
    image, program = tmp_path / "x.sif", tmp_path / "apptainer"
    image.write_bytes(sif_bytes())
    program.write_text("#!/bin/sh\nexec sleep 30\n")
    program.chmod(0o755)
    with pytest.raises(UnavailableError, match=r"within 0\.2 s"):
        check_own_image(str(image), program)
