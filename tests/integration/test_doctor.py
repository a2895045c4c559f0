"""`carme doctor` on a live cluster: no fault, the expected faults, and no fault again."""

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli_w

from carme.local import render
from support.cluster import Cluster, wait_for

CARME = Path(sys.prefix) / "bin/carme"
Lines = dict[str, dict[str, str]]
MACHINE = {"clock", "disk /", "disk /var", "disk /tmp", "disk /home"}
"""About the machine that runs the tests, which may be full or without a time server."""


def doctor(cluster: Cluster, *arguments: str, user: str = "") -> Lines:
    """Each line by the name of its check, as `--json` has it; the exit code agrees."""
    argv = [str(CARME), "doctor", "--json", *arguments]
    result = cluster.run_as(user, argv, timeout=90) if user else cluster.run(argv, timeout=90)
    assert result.stdout.startswith("["), result.stderr
    lines = {row["check"]: row for row in json.loads(result.stdout)}
    assert result.returncode == any(row["level"] == "fault" for row in lines.values())
    for row in lines.values():
        assert bool(row["todo"]) == (row["level"] in ("fault", "warning")), row
    return lines


def bad(lines: Lines, *levels: str) -> set[str]:
    return {name for name, row in lines.items() if row["level"] in (levels or ("fault",))} - MACHINE


def wait_green(cluster: Cluster) -> None:
    def look() -> bool:
        lines.update(doctor(cluster))
        return not bad(lines, "fault", "warning")

    lines: Lines = {}
    try:
        wait_for(look, 90, "all lines green again")
    except AssertionError:
        raise AssertionError(json.dumps([lines[name] for name in bad(lines, "fault")])) from None


def red(cluster: Cluster, *names: str) -> Lines:
    """All lines, once those of `names` show a fault."""

    def look() -> Lines | None:
        lines = doctor(cluster)
        return lines if set(names) <= bad(lines) else None

    faulty: Lines = wait_for(look, 45, f"{', '.join(names)} show a fault")
    return faulty


@contextmanager
def stopped(cluster: Cluster, *parts: str) -> Iterator[None]:
    """Stop these services for the duration of the context."""
    try:
        for part in parts:
            cluster.stop(part)
        yield
    finally:
        for part in parts:
            cluster.start(part)


def test_all_lines_are_green(cluster: Cluster) -> None:
    wait_green(cluster)
    lines = doctor(cluster)
    config = cluster.config.local
    expected = {
        *(
            "supervisor",
            "clock",
            "names",
            "ports",
            "disk /",
            "munge",
            "mariadb",
            "slurmdbd",
            "slurmctld",
        ),
        *("slurmrestd", "nodes", "virtual GPUs", "cgroups", "images", "container", "view"),
        *("view's right", "sudo rule", "helper", "hub", "proxy", "service", "discovery"),
        *("prometheus", "targets", "alertmanager", "exporter cluster"),
        *(f"slurmd {node.name}" for node in config.nodes),
        *(f"exporter {node.name}" for node in config.nodes),
        *(f"GPUs {node.name}" for node in config.nodes if node.gpus),
    }
    checked = {name for name, row in lines.items() if row["level"] in ("ok", "warning")}
    assert expected - MACHINE <= checked
    assert lines["certificate"]["level"] == "skipped"
    assert lines["GPUs gpu01"]["found"] == "4 in NVML and in Slurm"
    assert f"starts as {cluster.users[0]}" in lines["container"]["found"]


def test_people_read_a_table(cluster: Cluster) -> None:
    began = time.monotonic()
    result = cluster.run([str(CARME), "doctor"], timeout=60)
    assert time.monotonic() - began < 30
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"the whole cluster on one machine, in {cluster.dir}" in result.stdout
    assert "0 faults" in result.stdout
    assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= 110


def test_the_file_that_up_was_given_will_do(cluster: Cluster) -> None:
    lines = doctor(cluster, "--config", str(cluster.dir / "etc/site.toml"))
    assert not bad(lines)


def test_without_root_it_says_what_only_root_can_see(cluster: Cluster) -> None:
    lines = doctor(cluster, user=cluster.users[0])
    assert not bad(lines)
    assert {"mariadb", "sudo rule", "helper", "targets"} <= bad(lines, "needs root")
    assert f"starts as {cluster.users[0]}" in lines["container"]["found"]


def test_what_does_not_run_is_named_with_its_log(cluster: Cluster) -> None:
    parts = {
        "exporter-gpu01": "exporter gpu01",
        "slurmd-gpu02": "slurmd gpu02",
        "hub": "hub",
        "alertmanager": "alertmanager",
    }
    frozen = cluster.pid("service")
    with stopped(cluster, *parts):
        os.kill(frozen, signal.SIGSTOP)
        cluster.run(["scontrol", "update", "nodename=cpu01", "state=drain", "reason=fan"])
        try:
            # Prometheus notices one target after the other.
            names_gpu01 = lambda: "gpu01" in doctor(cluster)["targets"]["found"]  # noqa: E731
            wait_for(names_gpu01, 45, "gpu01 among the targets that are down")
            lines = red(cluster, "targets", *parts.values())
        finally:
            os.kill(frozen, signal.SIGCONT)
            cluster.run(["scontrol", "update", "nodename=cpu01", "state=resume"])
    # Slurm's timers decide when it notices a missing slurmd.
    assert bad(lines) - {"nodes"} == {*parts.values(), "service", "targets", "ports"}
    for part, name in parts.items():
        assert f"{cluster.dir}/log/{part}.log" in lines[name]["todo"]
        assert f"carme up --dir {cluster.dir}" in lines[name]["todo"]
    assert "Connection refused" in lines["hub"]["found"]
    assert "no answer in time" in lines["service"]["found"]
    assert "gpu01" in lines["targets"]["found"]
    assert "(slurmd gpu02)" in lines["ports"]["found"]
    assert "the hub behind it does not" in lines["proxy"]["found"]
    assert lines["slurmd cpu01"]["level"] == "warning"
    assert "cpu01 is drained (fan)" in lines["nodes"]["found"]
    assert "state=resume" in lines["slurmd cpu01"]["todo"]
    wait_green(cluster)


def test_without_munge_slurm_does_not_talk(cluster: Cluster) -> None:
    with stopped(cluster, "munged"):
        lines = red(cluster, "munge")
    assert f"{cluster.dir}/log/munged.log" in lines["munge"]["todo"]
    assert lines["slurmctld"]["todo"] == "repair first: munge"
    assert not {"hub", "proxy", "prometheus", "container", "ports"} & bad(lines)
    wait_green(cluster)


def test_strangers_on_ports_and_rules_that_are_gone(cluster: Cluster) -> None:
    rule = render.sudoers_path(cluster.local.layout)
    hidden = rule.with_name(f"{rule.name}.off")  # sudo reads no file with a dot in its name
    port = cluster.config.service.port
    with stopped(cluster, "service", "proxy", "prometheus", "view"):
        rule.rename(hidden)
        try:
            with socket.create_server(("127.0.0.1", port)):
                lines = red(cluster, "service")
        finally:
            hidden.rename(rule)
    # Without the view, discovery does not renew its file.
    assert bad(lines) - {"discovery"} == {
        *("ports", "service", "proxy", "prometheus", "targets", "alertmanager", "view"),
        *("sudo rule", "helper"),
    }
    assert f"{port} (service) by " in lines["ports"]["found"]
    assert "another port" in lines["ports"]["todo"]
    assert "the hub may not submit" in lines["sudo rule"]["found"]
    assert f"carme up --dir {cluster.dir}" in lines["sudo rule"]["todo"]
    assert lines["targets"]["todo"] == "repair first: prometheus"
    assert lines["helper"]["todo"] == "repair first: sudo rule"
    wait_green(cluster)


def test_a_sudo_rule_too_many_is_named(cluster: Cluster) -> None:
    rule = render.sudoers_path(cluster.local.layout)
    more = rule.with_name(f"{rule.name}-more")
    more.write_text(f"{cluster.config.hub.user} ALL=(root) NOPASSWD: /usr/bin/true\n")
    try:
        line = doctor(cluster)["sudo rule"]
    finally:
        more.unlink()
    assert line["level"] == "fault"
    assert line["found"].endswith(": /usr/bin/true as root")
    assert doctor(cluster)["sudo rule"]["level"] == "ok"


def test_a_damaged_image_is_named(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    shutil.copytree(cluster.config.images.folder, folder)
    tmp_path.chmod(0o755)
    data = cluster.config.model_dump(mode="json", exclude_none=True)
    data["images"]["folder"] = str(folder)
    config = tmp_path / "carme.toml"
    config.write_text(tomli_w.dumps(data), encoding="utf-8")
    assert doctor(cluster, "--config", str(config))["images"]["level"] == "ok"

    image = next(folder.glob("*.sif"))
    with image.open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    lines = doctor(cluster, "--config", str(config))
    # Whether the image still starts depends on the damaged bytes.
    assert bad(lines) - {"container"} == {"images"}
    assert "the checksum of" in lines["images"]["found"]
    assert "carme images build" in lines["images"]["todo"]
    assert not bad(doctor(cluster))
