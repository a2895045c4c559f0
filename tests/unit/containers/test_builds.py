"""The parts of a build that need no container: logs, settings, ids, space."""

import os
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from carme.errors import UnavailableError
from carme.system.mirrors import AptSource
from carme_containers.apptainer_engine import parse_dpkg, parse_labels, parse_pip
from carme_containers.build_environment import (
    BuildUser,
    free_range,
    image_sources,
    map_pip,
    prepare,
)
from carme_containers.build_log import BuildLog, build_step, explain_log
from carme_containers.builder import check_space, take_file
from carme_containers.docker_engine import FileServer
from carme_containers.node_images import files_in_jobs, open_files
from carme_containers.recipe import Manifest, Recipe

ME = BuildUser("me", os.getuid(), os.getgid(), switch=False)


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("INFO:    Starting build...", "fetching"),
        ("\x1b[34mINFO:   \x1b[0m Creating SIF file...", "creating the image file"),
        ("I: Unpacking libc6:amd64...", "unpacking libc6:amd64"),
        ("Collecting jupyterlab==4.6.6", "collecting jupyterlab==4.6.6"),
        ("Step 3/9 : RUN set -eu; apt-get", "step 3/9: RUN"),
        ("(Reading database ... 70%", ""),
    ],
)
def test_steps(line: str, step: str) -> None:
    assert build_step(line) == step


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (["I: fine", "E: no package nix", "FATAL: exit status 100"], "E: no package nix"),
        (["ERROR: No matching distribution for x"], "ERROR: No matching distribution for x"),
        (["+ cp a b", "cp: no a", "FATAL: while running %post section"], "cp: no a"),
        (["FATAL: no such image"], "FATAL: no such image"),
        (["tar: No space left on device", "done"], "tar: No space left on device"),
        ([], "it wrote nothing"),
    ],
)
def test_reason_of_a_failure(log: list[str], reason: str) -> None:
    assert explain_log("".join(f"  1.0 {line}\n" for line in log)) == reason


def test_log_of_a_command(tmp_path: Path) -> None:
    progress: list[str] = []
    with BuildLog(tmp_path / "log", "x:1", progress.append) as log:
        log.step("building")
        code = log.run(
            ["sh", "-c", "echo one; echo two >&2; exit 3"], dict(os.environ), tmp_path, ME
        )
    assert code == 3
    assert [line.split()[1] for line in (tmp_path / "log").read_text().splitlines()] == [
        "one",
        "two",
    ]
    assert progress == ["x:1: building"]


def test_space_is_checked_before(tmp_path: Path) -> None:
    manifest = Manifest(title="T", description="D", version="1", disk_mb=10**9)
    with pytest.raises(UnavailableError, match=r"x:1 needs 954 TiB .* free"):
        check_space(tmp_path, Recipe("x", tmp_path, manifest))


def test_local_folders_of_pip_are_brought_along(tmp_path: Path) -> None:
    (tmp_path / "pypi/simple").mkdir(parents=True)
    (tmp_path / "wheels").mkdir()
    settings = {
        "index-url": "http://one.test/simple",
        "extra-index-url": f"file://{tmp_path}/pypi/simple http://two.test/simple",
        "find-links": f"{tmp_path}/wheels {tmp_path}/gone",
        "timeout": "180",
    }
    environment, folders = map_pip(settings)
    assert environment["PIP_INDEX_URL"] == "http://one.test/simple"
    assert environment["PIP_EXTRA_INDEX_URL"] == "file:///mnt/pip-0/simple http://two.test/simple"
    assert environment["PIP_FIND_LINKS"] == f"/mnt/pip-1 {tmp_path}/gone"
    assert environment["PIP_DEFAULT_TIMEOUT"] == "180"
    assert folders == {tmp_path / "pypi": "/mnt/pip-0", tmp_path / "wheels": "/mnt/pip-1"}


def test_sources_inside_follow_the_machine() -> None:
    sources = [
        AptSource("http://m.test/debian", "bookworm", ("main",)),
        AptSource("http://s.test/debian-security", "bookworm-security", ("main",)),
        AptSource("http://other.test", "nodistro", ("main",)),
    ]
    assert image_sources(sources, "http://m.test/debian").splitlines() == [
        "deb http://m.test/debian bookworm main",
        "deb http://m.test/debian bookworm-updates main",
        "deb http://s.test/debian-security bookworm-security main",
    ]


def test_surroundings_of_this_machine(tmp_path: Path) -> None:
    environment = prepare(tmp_path / "mnt", "http://m.test/debian")
    assert environment.mirror == "http://m.test/debian"
    assert environment.binds[0] == (tmp_path / "mnt", "/mnt")
    for _, inside in environment.binds[1:]:
        assert (tmp_path / "mnt" / inside.removeprefix("/mnt/")).is_dir()
    assert "http://m.test/debian bookworm main" in (tmp_path / "mnt/sources.list").read_text()


def test_free_subordinate_ids() -> None:
    assert free_range("") == 524288
    assert free_range("alice:100000:65536\nbroken\nbob:700000:65536\n") == 765536


def test_what_is_inside() -> None:
    assert parse_dpkg("bash 5.2\nlibc6 2.36-9\n\n") == {"bash": "5.2", "libc6": "2.36-9"}
    assert parse_pip('[{"name": "numpy", "version": "2.4"}]') == {"numpy": "2.4"}
    assert parse_pip("no pip here") == {}
    assert parse_labels('{"data": {"attributes": {"labels": {"b": "2", "a": "1"}}}}') == {
        "a": "1",
        "b": "2",
    }
    assert parse_labels("{}") == {}


def test_files_named_in_jobs() -> None:
    comments = "carme-image=base-1.0-abc.sif,carme-submission=4f\n(null)\n"
    comments += "mine, carme-image=app-2-def.sif x\ncarme-image=../x.sif\n"
    assert files_in_jobs(comments) == {"base-1.0-abc.sif", "app-2-def.sif"}


def test_files_open_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "a.sif").write_bytes(b"x")
    (tmp_path / "b.sif").write_bytes(b"x")
    with (tmp_path / "a.sif").open("rb"):
        assert open_files(tmp_path) == {"a.sif"}


def test_file_server_shows_its_folders_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown/file").write_text("hello")
    (tmp_path / "hidden").write_text("secret")
    with FileServer({"pip-0": tmp_path / "shown"}) as server:
        with urlopen(f"{server.address}/pip-0/file") as answer:
            assert answer.read() == b"hello"
        wrong = server.address.rsplit("/", 1)[0] + "/guess"
        for address in (
            f"{server.address}/pip-0/../hidden",
            f"{server.address}/pip-0/%2e%2e/hidden",
            f"{server.address}/pip-1/file",
            f"{wrong}/pip-0/file",
            server.address,
        ):
            with pytest.raises(HTTPError) as caught:
                urlopen(address)
            assert caught.value.code == 404
            caught.value.close()


def test_built_file_is_copied(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    built = tmp_path / "out/x.sif"
    built.write_bytes(b"image")
    with built.open("r+b") as still_open:
        taken = take_file(built, tmp_path / "x.sif")
        still_open.write(b"OTHER")
    assert taken.read_bytes() == b"image"
    assert not built.exists()


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder", "nothing"])
def test_only_a_file_of_its_own_is_taken_from_a_build(tmp_path: Path, kind: str) -> None:
    """Otherwise a build could make root publish a file that only root can read."""
    secret, built = tmp_path / "secret", tmp_path / "x.sif"
    secret.write_text("secret")
    secret.chmod(0o600)
    if kind == "link":
        built.symlink_to(secret)
    elif kind == "hard link":
        built.hardlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(built)
    elif kind == "folder":
        built.mkdir()
    with pytest.raises(UnavailableError, match=r"x\.sif cannot be used"):
        take_file(built, tmp_path / "taken")
    assert not (tmp_path / "taken").exists()
    assert secret.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_ownership_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    BuildUser("nobody", 65534, 65534, switch=True).take_ownership(tmp_path / "link")
    assert (tmp_path / "secret").stat().st_uid == 0
    assert (tmp_path / "link").lstat().st_uid == 65534
