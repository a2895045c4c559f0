"""Checks run side by side, and the command shows what they found."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from carme.doctor import commands
from carme.doctor.check import Check, Finding, Level, absent, fault, ok, run_checks, warning
from carme.errors import MissingError


def well() -> Finding:
    return ok("one", "well")


def test_no_check_can_end_hang_or_hold_up_the_others() -> None:
    def missing() -> Finding:
        raise MissingError("no apptainer\n  at all", "install it")

    def mistaken() -> Finding:
        raise KeyError("x")

    began = time.monotonic()
    findings = run_checks(
        [
            Check("hangs", lambda: time.sleep(60) or well(), seconds=0.3),
            Check("missing", missing),
            Check("mistaken", mistaken),
            Check("one", well),
            *(Check("one", lambda: time.sleep(0.3) or well()) for _ in range(20)),
        ]
    )
    assert time.monotonic() - began < 3
    assert findings[0].found == "no answer within 0.3 s"
    assert findings[1] == Finding("missing", Level.FAULT, "no apptainer at all", "install it")
    assert "KeyError" in findings[2].found
    assert [finding.level for finding in findings[3:]] == [Level.OK] * 21
    assert all(finding.todo for finding in findings[:3])


def test_the_advice_of_the_check_wins_over_the_error_s() -> None:
    def missing() -> Finding:
        raise MissingError("gone", "is it running?")

    [finding] = run_checks([Check("x", missing, todo="systemctl restart x")])
    assert finding.todo == "systemctl restart x"


def test_a_check_that_needs_root_is_not_run_without() -> None:
    checks = [Check("secret", lambda: 1 / 0, needs_root=True), Check("one", well)]  # type: ignore[arg-type, return-value]
    findings = run_checks(checks, is_root=False)
    assert [finding.level for finding in findings] == [Level.ROOT, Level.OK]


def test_a_consequence_points_to_its_cause() -> None:
    def lost(name: str, *needs: str) -> Check:
        return Check(name, lambda: fault(name, "silent", f"start {name}"), needs=needs)

    findings = run_checks([Check("one", well), lost("munge", "one"), lost("nodes", "one", "munge")])
    assert [finding.todo for finding in findings] == ["", "start munge", "repair first: munge"]


SHOWN = [
    (Check("hub", well, "sessions"), ok("hub", "answers")),
    (Check("nodes", well, "Slurm"), warning("nodes", "n1 is drained", "resume it")),
    (
        Check("slurmd a-long-name", well, "Slurm"),
        fault("slurmd a-long-name", "does not run " * 9, "see /var/lib/carme-local/log/x.log " * 4),
    ),
    (Check("proxy", well, "Slurm"), absent("proxy")),
    (Check("helper", well, "Slurm"), Finding("helper", Level.ROOT, "only root can check this")),
]


def test_the_lines_are_aligned_and_paths_whole() -> None:
    checks, findings = zip(*SHOWN, strict=True)
    lines = [line.plain for line in commands.table(checks, findings, 80)]
    assert lines[:6] == [
        "",
        "sessions",
        "  hub                 ok       answers",
        "",
        "Slurm",
        "  nodes               warning  n1 is drained",
    ]
    assert lines[6] == " " * 31 + "→ resume it"
    assert all(len(line) <= 80 for line in lines)
    assert sum("/var/lib/carme-local/log/x.log" in line for line in lines) >= 2
    assert "proxy" not in " ".join(lines)


def test_the_summary_counts_and_names_what_was_left_out() -> None:
    lines = [line.plain for line in commands.summary([finding for _, finding in SHOWN])]
    assert lines == [
        "",
        "Not on this host: proxy",
        "Needs root: helper; run sudo carme doctor for them",
        "1 ok, 1 warning, 1 fault",
    ]


def test_nothing_is_set_up_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "carme.toml"
    config.write_text(f'[local]\ndir = "{tmp_path}/none"\n[slurm]\nconf = "{tmp_path}/none.conf"\n')
    monkeypatch.setattr("carme.doctor.host_services._SYSTEMD", tmp_path / "none")
    done = CliRunner().invoke(commands.doctor, ["--json", "--config", str(config)])
    rows = {row["check"]: row["level"] for row in json.loads(done.stdout)}
    assert {"hub", "slurmctld"}.isdisjoint(rows)
    assert rows["proxy"] == rows["munge"] == rows["exporter"] == "skipped"
    assert set(rows.values()) <= {"ok", "warning", "skipped", "fault"}
