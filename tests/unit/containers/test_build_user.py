"""The Unix user that builds images, as root makes and removes it."""

import grp
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from carme_containers import build_environment
from carme_containers.build_environment import build_user, remove_build_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes users")


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A name that no other test uses; nothing of it is left afterwards."""
    user = f"ct-build-{os.getpid()}"
    monkeypatch.setattr(build_environment, "BUILD_USER", user)
    monkeypatch.setattr(build_environment, "BUILD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(build_environment, "_LOCK", tmp_path / "lock")
    yield user
    subprocess.run(["userdel", "--force", user], capture_output=True)


def traces(name: str, home: Path) -> list[str]:
    tables = ("/etc/passwd", "/etc/group", "/etc/subuid", "/etc/subgid")
    lines = [line for path in tables for line in Path(path).read_text().splitlines()]
    return [*(line for line in lines if line.startswith(f"{name}:")), *home.glob("*")]


def test_it_goes_with_its_group_ids_and_folder(name: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    user = build_user()
    assert build_user() == user
    assert (pwd.getpwnam(name).pw_uid, grp.getgrnam(name).gr_gid) == user.identity
    (home / ".apptainer").mkdir()
    assert len(traces(name, home)) == 5
    remove_build_user()
    assert traces(name, home) == []
    assert not home.exists()
    remove_build_user()  # nothing to remove is no error


def test_it_stays_while_it_builds(name: str, tmp_path: Path) -> None:
    user = build_user()
    with subprocess.Popen(["sleep", "60"], user=user.uid, group=user.gid) as build:
        remove_build_user()
        assert pwd.getpwnam(name).pw_uid == user.uid
        build.kill()
    remove_build_user()
    assert not (tmp_path / "home").exists()
