"""Each check's decision, on what was read."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from carme.doctor import cluster, host, platform
from carme.doctor.finding import Check, Finding, Level, run
from carme.errors import MissingError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
F, W, X = Level.FINE, Level.WARNING, Level.FAILURE


@pytest.mark.parametrize(
    ("found", "level", "words"),
    [
        (host.clock("yes"), F, "synchronised"),
        (host.clock("no"), W, "five minutes"),
        (host.names([], 3), F, "3 names"),
        (host.names(["gpu09"], 3), X, "gpu09"),
        (host.disk(Path("/var"), 40), F, "40 %"),
        (host.disk(Path("/var"), 90), W, "90 %"),
        (host.disk(Path("/var"), 99), X, "99 %"),
        (host.certificate(NOW + timedelta(days=90), NOW), F, "90 days"),
        (host.certificate(NOW + timedelta(days=5), NOW), W, "5 days"),
        (host.certificate(NOW - timedelta(days=5), NOW), X, "ended"),
        (host.unit("slurmd", "active"), F, "runs"),
        (host.unit("slurmd", "failed"), X, "is failed"),
        (cluster.controller("Slurmctld(primary) at front is UP"), F, "answers"),
        (cluster.controller("Slurmctld(primary) at front is DOWN"), X, "DOWN"),
        (cluster.nodes("node1 idle none\nnode2 mixed none\n"), F, "2 take jobs"),
        (cluster.nodes("node1 drained bad disk\n"), W, "node1 is drained (bad disk)"),
        (cluster.nodes("node1 idle* none\n"), W, "node1 is idle*"),
        (cluster.nodes(""), X, "no node"),
        (cluster.gpus(4, 4), F, "4"),
        (cluster.gpus(4, 3), X, "shows 3"),
        (cluster.gpus(2, 4), W, "gives out 2"),
        (cluster.operator("Operator", "carme-view"), F, "Operator"),
        (cluster.operator("None", "carme-view"), X, "cannot see"),
        (platform.images((), 2), F, "2 offered"),
        (platform.images(("base is not offered: x",), 1), W, "not offered"),
        (platform.images((), 0), X, "none"),
        (platform.sudo_rule("(%users) NOPASSWD: /x/carme-helper", "carme-helper"), F, "helper"),
        (platform.sudo_rule("not allowed to run sudo", "carme-helper"), X, "may not"),
        (
            platform.sudo_rule("NOPASSWD: ALL\nNOPASSWD: /x/carme-helper", "carme-helper"),
            X,
            "anything",
        ),
    ],
)
def test_a_finding_says_what_was_seen_and_what_to_do(
    found: Finding, level: Level, words: str
) -> None:
    assert found.level is level
    assert words in found.saw
    assert bool(found.todo) == (level is not Level.FINE)


def test_an_expected_error_is_a_failure_with_its_hint() -> None:
    def look() -> Finding:
        raise MissingError("no apptainer", "install it")

    assert run(Check("container", look)) == Finding("container", X, "no apptainer", "install it")
