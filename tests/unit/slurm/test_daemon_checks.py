"""Health checks of Slurm's daemons, with programs in place of Slurm's."""

from collections.abc import Callable
from pathlib import Path

import pytest

from carme.config import Config
from carme.config.services import deployed_services
from carme.doctor import slurm
from carme.doctor.check import Level
from carme.doctor.host_services import HostServices
from carme.errors import UnavailableError
from carme.slurm import daemon_checks

Programs = Callable[..., dict[str, str]]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Writes shell scripts of these names; returns an environment in which they are found."""

    def write(**scripts: str) -> dict[str, str]:
        for name, script in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    return write


def test_munge(programs: Programs) -> None:
    programs(munge="echo MUNGE:x", unmunge="grep -q MUNGE:x")
    assert daemon_checks.munge() == "encodes and decodes credentials"
    programs(unmunge="echo unmunge: Error: Expired credential >&2; exit 15")
    with pytest.raises(UnavailableError, match="Expired credential") as info:
        daemon_checks.munge()
    assert "clock" in info.value.hint
    programs(munge="echo munge: Error: Failed to access socket >&2; exit 6")
    with pytest.raises(UnavailableError, match="Failed to access socket") as info:
        daemon_checks.munge(Path("/run/m.sock"))
    assert not info.value.hint


def test_slurmdbd(programs: Programs) -> None:
    env = programs(sacctmgr="printf 'atlas\\nother\\n'")
    assert daemon_checks.slurmdbd("Atlas", env) == "stores the jobs of Atlas"
    with pytest.raises(UnavailableError, match="ajax is not registered, only: atlas, other"):
        daemon_checks.slurmdbd("ajax", env)


def test_slurmctld() -> None:
    primary, backup = "Slurmctld(primary) at a is UP", "Slurmctld(backup) at b is DOWN"
    assert daemon_checks.controllers_down(primary) == ()
    assert daemon_checks.controllers_down(f"{primary}\n{backup}") == (backup,)
    with pytest.raises(UnavailableError, match="a is DOWN"):
        daemon_checks.controllers_down("Slurmctld(primary) at a is DOWN\n****\n** RESTORE **\n****")
    with pytest.raises(UnavailableError, match="no answer"):
        daemon_checks.controllers_down("")


@pytest.mark.parametrize("state", ["idle", "mixed", "drained", "down*", "inval", "error", "maint"])
def test_status_and_doctor_agree_about_a_node(programs: Programs, state: str) -> None:
    env = programs(sinfo=f"echo 'gpu01|{state}|bad disk'; echo 'gpu01|{state}|bad disk'")
    config = Config()
    services = deployed_services(config, "gpu01", {})
    service = next(service for service in services if service.name == "slurmd gpu01")
    finding = slurm.read_slurmd(HostServices(config, None, services), service)
    if state in ("idle", "mixed"):
        assert daemon_checks.slurmd("gpu01", env) == finding.found == state
        return
    assert finding.level in (Level.WARNING, Level.FAULT)
    assert f"gpu01 is {state} (bad disk)" in finding.found
    with pytest.raises(UnavailableError, match=r"gpu01 is .+ \(bad disk\)"):
        daemon_checks.slurmd("gpu01", env)


def test_a_node_that_slurm_does_not_know(programs: Programs) -> None:
    with pytest.raises(UnavailableError, match="does not know the node gpu09"):
        daemon_checks.slurmd("gpu09", programs(sinfo="true"))
