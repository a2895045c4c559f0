import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from carme.errors import DeniedError, MissingError, UnavailableError
from carme.helper.session_folder import SessionFolder, remove_old


def test_files_are_private_and_whole(tmp_path: Path) -> None:
    with SessionFolder.open(tmp_path, "lab-1", create=True) as folder:
        folder.write("env", "TOKEN=1\n")
        folder.write("env", "TOKEN=2\n")
    path = tmp_path / ".carme/sessions/lab-1"
    assert (path / "env").read_text() == "TOKEN=2\n"
    assert [file.name for file in path.iterdir()] == ["env"]
    assert stat.S_IMODE((path / "env").stat().st_mode) == 0o600
    for part in (path, path.parent, path.parent.parent):
        assert stat.S_IMODE(part.stat().st_mode) == 0o700


def test_a_folder_that_others_could_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / ".carme").mkdir(mode=0o755)
    with SessionFolder.open(tmp_path, "a", create=True):
        pass
    assert stat.S_IMODE((tmp_path / ".carme").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", ".hidden", "a\nb", "-x", "x" * 101])
def test_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeniedError), SessionFolder.open(tmp_path, name, create=True):
        pass
    with (
        SessionFolder.open(tmp_path, "ok", create=True) as folder,
        pytest.raises(DeniedError),
    ):
        folder.write(name, "x")


@pytest.mark.parametrize("part", [".carme", ".carme/sessions", ".carme/sessions/s"])
def test_links_are_not_followed(tmp_path: Path, part: str) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    (home / part).parent.mkdir(parents=True)
    elsewhere.mkdir()
    (home / part).symlink_to(elsewhere)
    with pytest.raises(DeniedError, match="link"), SessionFolder.open(home, "s", create=True):
        pass
    assert list(elsewhere.iterdir()) == []


def test_a_link_in_place_of_a_file_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    with SessionFolder.open(tmp_path, "s", create=True) as folder:
        (folder.path / "env").symlink_to(victim)
        folder.write("env", "TOKEN")
        assert not (folder.path / "env").is_symlink()
    assert victim.read_text() == "precious"


def test_a_home_that_is_a_link_is_fine(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "real")
    with SessionFolder.open(tmp_path / "home", "s", create=True) as folder:
        folder.write("f", "x")
    assert (tmp_path / "real/.carme/sessions/s/f").exists()


def test_missing_home(tmp_path: Path) -> None:
    with pytest.raises(MissingError), SessionFolder.open(tmp_path / "nobody", "s", create=True):
        pass
    with pytest.raises(MissingError), SessionFolder.open(tmp_path, "s"):
        pass


@pytest.fixture
def tiny_home(tmp_path: Path) -> Iterator[Path]:
    """A home on a file system of 64 KiB."""
    home = tmp_path / "tiny"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tiny", str(home)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small file system here")
    yield home
    subprocess.run(["umount", str(home)], check=True)


def test_a_full_home_is_said_so(tiny_home: Path) -> None:
    with SessionFolder.open(tiny_home, "s", create=True) as folder:
        folder.write("env", "TOKEN=1")
        with pytest.raises(DeniedError, match="home folder is full"):
            folder.write("env", "x" * 100_000)
        assert (folder.path / "env").read_text() == "TOKEN=1", "the old file is still whole"
        assert [path.name for path in folder.path.iterdir()] == ["env"]


def test_tail(tmp_path: Path) -> None:
    with SessionFolder.open(tmp_path, "s", create=True) as folder:
        log = folder.path / "session.log"
        log.write_bytes(b"one\ntwo \xff\x1b[31mred\x1b[0m\x00\r\nthree\n")
        assert folder.tail("session.log", 2) == "two \ufffdred\nthree"
        log.write_bytes(b"x" * 200_000 + b"\nlast\n")
        text = folder.tail("session.log", 1000)
        assert text.endswith("\nlast")
        assert len(text) <= 64 * 1024
        log.write_bytes(b"")
        assert folder.tail("session.log", 5) == ""


def test_tail_stays_inside(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with SessionFolder.open(tmp_path, "s", create=True) as folder:
        (folder.path / "link").symlink_to(secret)
        (folder.path / "folder").mkdir()
        os.mkfifo(folder.path / "pipe")
        with pytest.raises(DeniedError):
            folder.tail("link", 5)
        with pytest.raises((DeniedError, UnavailableError)):
            folder.tail("folder", 5)
        with pytest.raises(DeniedError):
            folder.tail("pipe", 5)
        with pytest.raises(MissingError):
            folder.tail("absent", 5)
        with pytest.raises(DeniedError):
            folder.tail("../../../secret", 5)


def _session(home: Path, name: str, age_seconds: float) -> Path:
    with SessionFolder.open(home, name, create=True) as folder:
        folder.write("session.log", "x")
        path = folder.path
    then = time.time() - age_seconds
    for changed in (path / "session.log", path):
        os.utime(changed, (then, then))
    return path


def test_old_folders_go_and_no_others(tmp_path: Path) -> None:
    old, used = _session(tmp_path, "old", 1000), _session(tmp_path, "used", 1000)
    new = _session(tmp_path, "new", 10)
    alive = _session(tmp_path, "alive", 1000)
    (alive / "session.log").write_text("something happened")  # the folder itself is old
    (old / "jupyter").mkdir()
    (old / "jupyter/file").touch()
    os.utime(old, (0, 0))
    os.utime(old / "jupyter", (0, 0))
    assert remove_old(tmp_path, {"used"}, time.time() - 500) == ["old"]
    assert [path.exists() for path in (old, used, new, alive)] == [False, True, True, True]


def test_what_a_link_leads_to_stays(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    old = _session(tmp_path, "old", 1000)
    (old / "link").symlink_to(precious)
    os.utime(old / "link", (0, 0), follow_symlinks=False)
    os.utime(old, (0, 0))
    os.utime(precious, (0, 0))
    (old.parent / "linked").symlink_to(precious)
    assert remove_old(tmp_path, (), time.time() - 500) == ["old"]
    assert (precious / "file").exists()
    assert (old.parent / "linked").is_symlink()


@pytest.mark.parametrize("part", [".carme", ".carme/sessions"])
def test_nothing_is_removed_through_a_linked_parent(tmp_path: Path, part: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "sessions/old").mkdir(parents=True)
    os.utime(elsewhere / "sessions/old", (0, 0))
    home = tmp_path / "home"
    (home / part).parent.mkdir(parents=True)
    (home / part).symlink_to(elsewhere if part == ".carme" else elsewhere / "sessions")
    assert remove_old(home, (), time.time()) == []
    assert (elsewhere / "sessions/old").exists()


def test_a_home_without_sessions_is_fine(tmp_path: Path) -> None:
    assert remove_old(tmp_path, (), time.time()) == []
