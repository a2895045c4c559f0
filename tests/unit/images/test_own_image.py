"""A user's own image, as far as it can be checked without starting it."""

import os
from pathlib import Path

import pytest

from carme.errors import DeniedError, InputError, MissingError, UnavailableError
from carme.images.own_image import check_own_image, real_path
from support.images import SESSION_NAMES, sif_bytes, squashfs_bytes

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


def programs(tmp_path: Path, names: dict[str, int], compressor: int = 1) -> str:
    """The version of JupyterHub in an image with these files."""
    path = tmp_path / "x.sif"
    path.write_bytes(sif_bytes(squashfs_bytes({"bin": 1, "sh": 2, **names}, compressor)))
    return check_own_image(str(path), NOT_THERE).jupyterhub


@pytest.mark.parametrize("compressor", [1, 4])
def test_what_a_session_needs_is_found_without_starting_the_image(
    tmp_path: Path, compressor: int
) -> None:
    assert programs(tmp_path, SESSION_NAMES, compressor) == "6.1.0"
    older = {**SESSION_NAMES, "jupyterhub-5.0.dist-info": 1}
    assert programs(tmp_path, older, compressor) == "6.1.0", "one of them fits"


@pytest.mark.parametrize(
    ("missing", "more", "words"),
    [
        ("jupyterhub-singleuser", "", "has no jupyterhub-singleuser on its PATH"),
        ("jupyterhub-singleuser", "my-jupyterhub-singleuser", "has no jupyterhub-singleuser"),
        ("jupyterhub-singleuser", "jupyterhub-singleuser.md", "has no jupyterhub-singleuser"),
        ("jupyter-lab", "jupyter-labextension", "has no JupyterLab"),
        ("jupyterhub-6.1.0.dist-info", "jupyterhub-5.4.dist-info", "has JupyterHub 5.4, this hub"),
        ("jupyterhub-6.1.0.dist-info", "jupyterhub-60.0.egg-info", "has JupyterHub 60.0, this hub"),
    ],
)
def test_what_is_missing_in_the_image_is_said(
    tmp_path: Path, missing: str, more: str, words: str
) -> None:
    names = {name: kind for name, kind in SESSION_NAMES.items() if name != missing}
    with pytest.raises(InputError, match=words) as refused:
        programs(tmp_path, {**names, more: 2} if more else names)
    assert refused.value.hint == "install in it: pip install 'jupyterhub==6.*' 'jupyterlab==4.*'"


def test_an_unknown_version_and_unreadable_names_are_left_to_the_session(tmp_path: Path) -> None:
    names = {name: kind for name, kind in SESSION_NAMES.items() if "dist-info" not in name}
    assert programs(tmp_path, names) == ""
    assert programs(tmp_path, {}, compressor=6) == "", "zstd cannot be read"


def test_an_encrypted_image_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(sif_bytes(file_system=5))
    with pytest.raises(InputError, match="is encrypted"):
        check_own_image(str(path), NOT_THERE)


def test_a_device_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a file"):
        check_own_image("/dev/zero", NOT_THERE)


def test_only_the_signature_is_checked_with_apptainer(tmp_path: Path) -> None:
    image, program, log = tmp_path / "x.sif", tmp_path / "apptainer", tmp_path / "log"
    image.write_bytes(sif_bytes(squashfs_bytes(SESSION_NAMES)))
    program.write_text(f'#!/bin/sh\necho "$*" >>{log}\nyes | head -c 99999\nexit $(cat {log}.code)')
    program.chmod(0o755)
    (tmp_path / "log.code").write_text("0")
    check_own_image(str(image), program)
    assert not log.exists()
    check_own_image(str(image), program, verify_key=Path("/key"))
    assert log.read_text() == f"verify --all --key /key {image}\n"
    (tmp_path / "log.code").write_text("1")
    with pytest.raises(DeniedError, match="not signed with this site's key"):
        check_own_image(str(image), program, verify_key=Path("/key"))
    with pytest.raises(UnavailableError, match="there is no Apptainer"):
        check_own_image(str(image), None, verify_key=Path("/key"))
