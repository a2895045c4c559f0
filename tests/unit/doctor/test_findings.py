"""Each check's decision, on what was read."""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from carme.doctor import host, monitoring, sessions, slurm
from carme.doctor.check import Finding, Level
from carme.prometheus import ScrapeTarget
from carme.slurm.daemon_checks import SlurmNodeState
from carme.slurm.snapshot import Snapshot
from carme.system.programs import CommandResult
from carme.templates import render

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OK, WARNING, FAULT, ABSENT = Level.OK, Level.WARNING, Level.FAULT, Level.ABSENT
ADVICE = "systemctl restart it"
HELPER = "/opt/bin/carme-helper --config /etc/carme/carme.toml"
VERBS = ("submit", "cancel", "signal", "extend", "tail-log", "check-image")


def sudo_list(*rules: str) -> str:
    head = "Matching Defaults entries for carme on vm:\n    use_pty\n\n"
    return head + "User carme may run the following commands on vm:\n" + "\n".join(rules)


RULE = "    (%people) NOPASSWD:\n" + ",\n".join(f"        {HELPER}\n  {verb}" for verb in VERBS)
HOMES = r"    (root) NOPASSWD: /usr/sbin/mkhomedir_helper ^[a-z_][a-z0-9_-]{0\,31} 0077$"


def sudo_rule(*rules: str, helper: str = HELPER) -> Finding:
    return sessions.sudo_rule(sudo_list(*rules), helper, "people", ADVICE)


def node_state(check: str, *states: tuple[str, str, str]) -> Finding:
    return slurm.node_state(check, [SlurmNodeState(*state) for state in states], ADVICE)


def target(health: str, error: str = "") -> ScrapeTarget:
    return ScrapeTarget("carme", "gpu01", health, error)


@pytest.mark.parametrize(
    ("finding", "level", "message"),
    [
        (host.clock(True, {}), OK, "synchronised by NTP"),
        (host.clock(True, {"gpu01": 0.4, "gpu02": -1}), OK, "2 others agree"),
        (host.clock(False, {"gpu01": 0.1}), WARNING, "not synchronised"),
        (host.clock(None, {"gpu01": 0.1}), OK, "container"),
        (host.clock(None, {}), ABSENT, "container"),
        (host.clock(True, {"gpu01": 8.0}), WARNING, "gpu01 by +8 s"),
        (host.clock(None, {"gpu01": -400.0, "gpu02": 0.0}), FAULT, "gpu01 by -400 s"),
        (sessions.session_host("*.hub.org", True), OK, "apart from the hub"),
        (sessions.session_host("*.hub.org", False), WARNING, "does not resolve"),
        (sessions.session_host("", False), WARNING, "can act for another"),
        (host.names([], [], 3), OK, "3 names"),
        (host.names(["10.gpu09"], [], 3), FAULT, "10.gpu09"),
        (host.names([], ["gpu09"], 3), WARNING, "gpu09"),
        (host.disk(Path("/var"), 40, "3 GiB"), OK, "40 % full, 3 GiB free"),
        (host.disk(Path("/var"), 90), WARNING, "90 %"),
        (host.disk(Path("/var"), 99), FAULT, "99 %"),
        (host.certificate(NOW + timedelta(days=90), NOW), OK, "90 days"),
        (host.certificate(NOW + timedelta(days=5), NOW), WARNING, "5 days"),
        (host.certificate(NOW - timedelta(hours=1), NOW), FAULT, "expired"),
        (host.certificate(NOW + timedelta(days=90), NOW, False), WARNING, "another one"),
        (slurm.controller([], ADVICE), OK, "answers"),
        (slurm.controller(["Slurmctld(backup) at b is DOWN"], ADVICE), WARNING, "b is DOWN"),
        (node_state("nodes", ("n1", "idle", "none")), OK, "idle"),
        (
            node_state("nodes", ("n1", "idle", ""), ("n2", "mixed", "")),
            OK,
            "2 accept jobs",
        ),
        (
            node_state("nodes", ("n1", "drained", "bad disk")),
            WARNING,
            "n1 is drained (bad disk)",
        ),
        (
            node_state("nodes", ("n1", "idle*", "none")),
            FAULT,
            "n1 is idle*",
        ),
        (
            node_state("nodes", ("n1", "down", "")),
            FAULT,
            "n1 is down",
        ),
        (
            node_state("nodes", ("n1", "inval", "Low")),
            FAULT,
            "inval (Low)",
        ),
        (
            node_state("nodes", ("n1", "error", "")),
            FAULT,
            "n1 is error",
        ),
        (node_state("slurmd n1"), FAULT, "does not know"),
        (slurm.operator("Operator", "carme-view", ADVICE), OK, "operator"),
        (slurm.operator("None", "carme-view", ADVICE), FAULT, "cannot see"),
        (slurm.gpus("n1", 4, 4), OK, "4 in NVML"),
        (slurm.gpus("n1", 4, 3), FAULT, "shows 3"),
        (slurm.gpus("n1", 2, 4), WARNING, "declares 2"),
        (slurm.gpus("n1", 4, None, "NVML: DriverNotLoaded"), FAULT, "DriverNotLoaded"),
        (slurm.gpus("n1", 0, None, "NVML: LibraryNotFound"), ABSENT, "none found"),
        (slurm.gpus("n1", 2, 2, missing=["/dev/nvidia1"]), FAULT, "/dev/nvidia1"),
        (sessions.images((), 2, 0, ()), OK, "2 read completely"),
        (sessions.images((), 2, 3, ()), OK, "3 unchanged"),
        (sessions.images(("base: wrong",), 1, 1, ()), FAULT, "base: wrong; 2 others are intact"),
        (sessions.images((), 1, 1, ("big:1",)), WARNING, "big:1"),
        (sessions.images((), 0, 0, ()), FAULT, "none is published"),
        (sessions.container(CommandResult("", "", 0), "base:1", "ann"), OK, "as ann"),
        (
            sessions.container(CommandResult("", "no /dev/fuse", 255), "base:1", "ann"),
            FAULT,
            "no /dev/fuse",
        ),
        (sessions.proxy(200, 403, ADVICE), OK, "requires a token"),
        (sessions.proxy(503, 403, ADVICE), OK, "hub behind it"),
        (sessions.proxy(200, 200, ADVICE), FAULT, "needs no token"),
        (sessions.proxy(404, 403, ADVICE), FAULT, "answers 404"),
        (sessions.proxy(200, 500, ADVICE), FAULT, "answers 500"),
        (sessions.view(Snapshot(taken_at=100), 110, 30, ADVICE), OK, "0 nodes"),
        (sessions.view(Snapshot(taken_at=100), 1000, 30, ADVICE), FAULT, "15 min"),
        (
            sessions.view(
                Snapshot(taken_at=100, controller="away", error="no route"), 110, 30, ADVICE
            ),
            FAULT,
            "no route",
        ),
        (sessions.service_state(200, b'{"service": "ok"}', ADVICE), OK, "answers"),
        (
            sessions.service_state(200, b'{"slurm view": "away"}', ADVICE),
            WARNING,
            "view: away",
        ),
        (
            sessions.service_state(503, b'{"database": "locked"}', ADVICE),
            FAULT,
            "database: locked",
        ),
        (sessions.service_state(404, b"<html>", ADVICE), FAULT, "not as the service does"),
        (sudo_rule(RULE, HOMES), OK, "6 verbs"),
        (sudo_rule(RULE), OK, "6 verbs"),
        (sudo_rule(RULE.replace("extend", "x"), HOMES), FAULT, "may not extend"),
        (sessions.sudo_rule("not allowed", HELPER, "people", ADVICE), FAULT, "submit"),
        (sudo_rule(RULE, "    (ALL : ALL) ALL"), FAULT, "ALL as ALL : ALL"),
        (sudo_rule(RULE, "    (root) NOPASSWD: /usr/bin/vim"), FAULT, "/usr/bin/vim as root"),
        (sudo_rule(RULE, RULE.replace("people", "root")), FAULT, "submit as %root"),
        (sudo_rule(RULE, HOMES.replace("root", "ALL")), FAULT, "mkhomedir_helper"),
        (sudo_rule(RULE.replace("%people", "root")), FAULT, "may not submit"),
        (sudo_rule(RULE, helper="/other --config /x"), FAULT, "/other"),
        (host.backup("/b", 3600, 9e6), OK, "1 h old"),
        (host.backup("/b", 3 * 86400, 9e6), WARNING, "3 d"),
        (host.backup("/b", None, 86400), OK, "within a day"),
        (host.backup("/b", None, 3 * 86400), WARNING, "none in /b"),
        (
            sessions.helper(
                CommandResult('{"error": {"reason": "missing"}}', "", 1), "ann", ADVICE
            ),
            OK,
            "ann",
        ),
        (
            sessions.helper(
                CommandResult('{"error": {"reason": "denied", "message": "uid 5"}}', "", 1),
                "ann",
                ADVICE,
            ),
            FAULT,
            "uid 5",
        ),
        (
            sessions.helper(CommandResult("", "sudo: a password is required", 1), "ann", ADVICE),
            FAULT,
            "password is required",
        ),
        (monitoring.exporter("exporter n1", 401, "", ADVICE), OK, "requires a password"),
        (monitoring.exporter("exporter n1", 401, "Unauthorized", ADVICE), FAULT, "does not accept"),
        (monitoring.exporter("exporter n1", 500, "x", ADVICE), FAULT, "answers 500"),
        (
            monitoring.exporter("e", 200, 'carme_collector_success{collector="gpu"} 1\n', ADVICE),
            OK,
            "1 collectors",
        ),
        (
            monitoring.exporter("e", 200, 'carme_collector_success{collector="gpu"} 0\n', ADVICE),
            WARNING,
            "cannot read: gpu",
        ),
        (monitoring.exporter("e", 200, "up 1\n", ADVICE), FAULT, "measures nothing"),
        (monitoring.discovery(["a", "b"], ["a", "b"], 5, ADVICE), OK, "2 nodes"),
        (monitoring.discovery(["a"], ["a", "b"], 5, ADVICE), OK, "b switched off"),
        (monitoring.discovery(["a", "c"], ["a"], 5, ADVICE), WARNING, "c"),
        (monitoring.discovery(["a"], ["a"], 3600, ADVICE), FAULT, "1 h"),
        (monitoring.discovery([], ["a"], 5, ADVICE), FAULT, "no node"),
        (monitoring.targets([target("up"), target("unknown")], ADVICE), OK, "1 not scraped yet"),
        (
            monitoring.targets([target("up"), target("down", 'Get "http://x": no route')], ADVICE),
            FAULT,
            "1 of 2 down: carme gpu01 (no route)",
        ),
        (monitoring.targets([], ADVICE), FAULT, "scrapes nothing"),
        (monitoring.alertmanager(200, 1, ADVICE), OK, "sends alerts"),
        (monitoring.alertmanager(401, 1, ADVICE), OK, "sends alerts"),
        (monitoring.alertmanager(200, 0, ADVICE), FAULT, "sends it nothing"),
        (monitoring.alertmanager(500, 1, ADVICE), FAULT, "answers 500"),
    ],
)
def test_a_finding_says_what_was_found_and_what_to_do(
    finding: Finding, level: Level, message: str
) -> None:
    assert finding.level is level
    assert message in finding.found
    assert bool(finding.todo) == (level in (WARNING, FAULT))


HUB = {8081: ("hub", "jupyterhub")}
PYTHON = "python3 /opt/bin/jupyterhub -f x"


@pytest.mark.parametrize(
    ("owners", "level", "message"),
    [
        ({8081: [host.PortOwner(7, PYTHON, "python3")]}, OK, "1 open, each used by its service"),
        ({8081: [host.PortOwner()]}, OK, "1 open"),
        ({}, FAULT, "nothing listens on 8081 (hub)"),
        ({8081: [host.PortOwner(9, "nc -l 8081", "nc")]}, FAULT, "by nc, process 9"),
        (
            {8081: [host.PortOwner(7, PYTHON, "python3"), host.PortOwner(9, "nc -l", "nc")]},
            FAULT,
            "by nc",
        ),
    ],
)
def test_ports(owners: dict[int, list[host.PortOwner]], level: Level, message: str) -> None:
    finding = host.ports(HUB, owners, "start it")
    assert finding.level is level
    assert message in finding.found


YES = {"constrainramspace": "yes", "constraindevices": "yes", "constraincores": "no"}


@pytest.mark.parametrize(
    ("version", "settings", "level", "message"),
    [
        ("v1", YES, OK, "cgroup/v1 with cpuacct, devices, freezer, memory"),
        ("v2", YES, OK, "cgroup/v2 with cpu, memory, pids"),
        ("v2", {**YES, "constraincores": "Yes"}, FAULT, "without cpuset"),
        ("v1", {**YES, "constraincores": "yes"}, FAULT, "without cpuset"),
        ("v2", {"cgroupplugin": "cgroup/v1"}, FAULT, "has cgroup/v1, this host has cgroup/v2"),
        ("v1", {"cgroupplugin": "cgroup/v2"}, FAULT, "this host has cgroup/v1"),
        ("v2", {"cgroupplugin": "autodetect"}, OK, "cgroup/v2"),
        ("none", YES, FAULT, "without"),
    ],
)
def test_cgroups(
    tmp_path: Path, version: str, settings: dict[str, str], level: Level, message: str
) -> None:
    if version == "v1":
        for name in ("memory", "devices", "freezer", "cpuacct"):
            (tmp_path / name).mkdir()
    if version == "v2":
        (tmp_path / "cgroup.controllers").write_text("cpu io memory pids\n")
    finding = slurm.cgroups(settings, tmp_path)
    assert finding.level is level
    assert message in finding.found


def test_one_disk_of_each_file_system(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert host.disks([tmp_path, tmp_path / "a", tmp_path / "gone"]) == [tmp_path]
    assert host.read_disk(tmp_path).level in Level


def test_the_certificate_s_date_as_openssl_prints_it() -> None:
    text = "notAfter=Jan  9 11:22:33 2027 GMT\n"
    assert host.end_date(text) == datetime(2027, 1, 9, 11, 22, 33, tzinfo=UTC)


def test_the_newest_archive_counts(tmp_path: Path) -> None:
    assert host.read_backup(tmp_path).level is ABSENT
    timer = tmp_path / "timers.target.wants/carme-backup.timer"
    timer.parent.mkdir()
    timer.symlink_to("/nowhere")
    folder = tmp_path / "backups"
    folder.mkdir()
    (tmp_path / "carme-backup.service").write_text(f"[Service]\nReadWritePaths={folder}\n")
    assert "is due" in host.read_backup(tmp_path).found
    old, new = folder / "carme-1.tar.gz", folder / "carme-2.tar.gz"
    old.touch()
    os.utime(old, (0, time.time() - 5 * 86400))
    assert host.read_backup(tmp_path).level is WARNING
    new.touch()
    assert host.read_backup(tmp_path).level is OK


def test_homes_are_made_by_the_rule_that_is_written() -> None:
    values = {"helper": "/h", "config": "/c", "alias": "A", "hub_user": "carme", "verbs": VERBS}
    text = render("sudoers", **values, users_group="people", make_homes=True)
    whom, command = sessions.MAKE_HOMES
    assert f"carme ALL=({whom}) NOPASSWD: {command}" in text.splitlines()
