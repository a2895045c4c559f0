"""`up` twice, `down`, and `up` from the stored state. Its name makes it the last test."""

import time

import psutil
from click.testing import CliRunner

from carme.cli import carme
from support.hub import User


def processes(cluster):
    running = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CARME_LOCAL_DIR") == str(cluster.dir):
                running.append(process)
        except psutil.Error:
            continue
    return running


def test_up_again_is_quick_and_changes_nothing(cluster):
    names = [service.name for service in cluster.local.services()]
    before = {name: cluster.pid(name) for name in names}
    started = time.monotonic()
    assert cluster.local.up(print) is False
    assert time.monotonic() - started < 15
    assert {name: cluster.pid(name) for name in names} == before


def test_status_has_a_line_a_service(cluster):
    result = CliRunner().invoke(carme, ["status", "--dir", str(cluster.dir)])
    assert result.exit_code == 0, result.output
    for service in cluster.local.services():
        assert f"{service.name} " in result.output
    assert "unhealthy" not in result.output


def test_down_leaves_no_process_and_no_port_and_up_finds_everything_again(cluster):
    ann = User.fresh(cluster, cluster.users[0])
    ann.start(partition="cpu", gpus=0, cpus=1, memory_gb=1, hours=0.2)
    [job] = cluster.jobs(ann.name)
    ports = set(cluster.local.layout.ports().values())

    cluster.local.down(print)
    assert processes(cluster) == []
    uid = cluster.run(["id", "-u", ann.name]).stdout.strip()
    assert cluster.run(["pgrep", "-u", uid]).stdout == ""
    listening = {
        c.laddr.port for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN
    }
    assert not listening & ports
    assert CliRunner().invoke(carme, ["status", "--dir", str(cluster.dir)]).exit_code == 1

    assert cluster.local.up(print) is True
    user = User(cluster, ann.name)
    assert user.login().status_code == 302
    assert not user.state().get("ready")
    history = cluster.run(["sacct", "-n", "-P", "-X", "-j", job["id"], "-o", "state"]).stdout
    assert history.startswith("CANCELLED")
