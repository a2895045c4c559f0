import socket
from pathlib import Path

import pytest

from carme.errors import ConfigError, MissingError, UnavailableError
from carme.local import host_checks


def release(tmp_path, text):
    file = tmp_path / "os-release"
    file.write_text(text)
    return file


def test_debian_12_is_fine(tmp_path):
    assert (
        host_checks.check_system(release(tmp_path, 'ID=debian\nVERSION_ID="12"\n')) == "Debian 12"
    )


@pytest.mark.parametrize("text", ["ID=fedora\nVERSION_ID=40\n", 'ID=debian\nVERSION_ID="11"\n', ""])
def test_other_systems_are_refused(tmp_path, text):
    with pytest.raises(ConfigError, match=r"runs on Debian 12.*pip install 'carme\[simulator\]'"):
        host_checks.check_system(release(tmp_path, text))


def test_a_taken_port_names_its_holder():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UnavailableError, match=rf"{port} \(of hub, used by \S+, process \d+\)"):
            host_checks.check_ports({"hub": port})


def test_one_port_for_two_parts_is_refused():
    with pytest.raises(ConfigError, match="hub and proxy"):
        host_checks.check_ports({"hub": 4711, "proxy": 4711})


def test_a_full_disk_is_said(tmp_path):
    with pytest.raises(UnavailableError, match=r"GB free, but .*/new needs .* GB"):
        host_checks.check_disk([tmp_path / "new"], needed_gb=10**6)
    assert not (tmp_path / "new").exists()


def test_cgroup_versions(tmp_path):
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2/cgroup.controllers").touch()
    assert host_checks.cgroup_plugin(tmp_path / "v2") == "cgroup/v2"
    for name in ("memory", "devices", "freezer", "cpuset"):
        (tmp_path / "v1" / name).mkdir(parents=True)
    assert host_checks.cgroup_plugin(tmp_path / "v1") == "cgroup/v1"


def test_missing_cgroups_are_named(tmp_path):
    with pytest.raises(MissingError, match="memory, devices, freezer, cpuset"):
        host_checks.cgroup_plugin(tmp_path)


def test_restricting_apparmor_is_named(tmp_path):
    file = tmp_path / "sys/kernel/apparmor_restrict_unprivileged_userns"
    file.parent.mkdir(parents=True)
    file.write_text("1\n")
    with pytest.raises(
        MissingError, match=r"sysctl kernel\.apparmor_restrict_unprivileged_userns=0"
    ):
        host_checks.check_kernel(tmp_path)


def test_not_root(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match=r"needs root.*sudo"):
        host_checks.check_root()


def test_an_environment_in_a_closed_folder_is_refused(tmp_path):
    closed = tmp_path / "closed"
    (closed / "venv").mkdir(parents=True)
    closed.chmod(0o700)
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match="other users cannot reach"):
        host_checks.check_python(Path(closed / "venv"))
