"""`carme doctor` on a live cluster: green, red where it hurts, and green again."""

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


def doctor(cluster: Cluster, *words: str, user: str = "") -> Lines:
    """Each line by the name of its check, as `--json` has it; the exit code agrees."""
    argv = [str(CARME), "doctor", "--json", *words]
    done = cluster.run_as(user, argv, timeout=90) if user else cluster.run(argv, timeout=90)
    assert done.stdout.startswith("["), done.stderr
    lines = {row["check"]: row for row in json.loads(done.stdout)}
    assert done.returncode == any(row["level"] == "fault" for row in lines.values())
    for row in lines.values():
        assert bool(row["todo"]) == (row["level"] in ("fault", "warning")), row
    return lines


def bad(lines: Lines, *levels: str) -> set[str]:
    return {name for name, row in lines.items() if row["level"] in (levels or ("fault",))} - MACHINE


def wait_green(cluster: Cluster) -> None:
    def look() -> bool:
        found.update(doctor(cluster))
        return not bad(found, "fault", "warning")

    found: Lines = {}
    try:
        wait_for(look, 90, "all lines green again")
    except AssertionError:
        raise AssertionError(json.dumps([found[name] for name in bad(found, "fault")])) from None


def red(cluster: Cluster, *names: str) -> Lines:
    """All lines, once those of `names` show a fault."""

    def look() -> Lines | None:
        lines = doctor(cluster)
        return lines if set(names) <= bad(lines) else None

    found: Lines = wait_for(look, 45, f"{', '.join(names)} show a fault")
    return found


@contextmanager
def stopped(cluster: Cluster, *parts: str) -> Iterator[None]:
    """Without these parts for a while."""
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
    seen = {name for name, row in lines.items() if row["level"] in ("ok", "warning")}
    assert expected - MACHINE <= seen
    assert lines["certificate"]["level"] == "skipped"
    assert lines["GPUs gpu01"]["found"] == "4 in NVML and in Slurm"
    assert f"starts as {cluster.users[0]}" in lines["container"]["found"]


def test_people_read_a_table(cluster: Cluster) -> None:
    began = time.monotonic()
    done = cluster.run([str(CARME), "doctor"], timeout=60)
    assert time.monotonic() - began < 30
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"the whole cluster on one machine, in {cluster.dir}" in done.stdout
    assert "0 faults" in done.stdout
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= 110


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
            told = lambda: "gpu01" in doctor(cluster)["targets"]["found"]  # noqa: E731
            wait_for(told, 45, "gpu01 among the targets that are down")
            found = red(cluster, "targets", *parts.values())
        finally:
            os.kill(frozen, signal.SIGCONT)
            cluster.run(["scontrol", "update", "nodename=cpu01", "state=resume"])
    # When Slurm itself misses a node's slurmd is a matter of its timers.
    assert bad(found) - {"nodes"} == {*parts.values(), "service", "targets", "ports"}
    for part, name in parts.items():
        assert f"{cluster.dir}/log/{part}.log" in found[name]["todo"]
        assert f"carme up --dir {cluster.dir}" in found[name]["todo"]
    assert "Connection refused" in found["hub"]["found"]
    assert "no answer in time" in found["service"]["found"]
    assert "gpu01" in found["targets"]["found"]
    assert "(slurmd gpu02)" in found["ports"]["found"]
    assert "the hub behind it does not" in found["proxy"]["found"]
    assert found["slurmd cpu01"]["level"] == "warning"
    assert "cpu01 is drained (fan)" in found["nodes"]["found"]
    assert "state=resume" in found["slurmd cpu01"]["todo"]
    wait_green(cluster)


def test_without_munge_slurm_does_not_talk(cluster: Cluster) -> None:
    with stopped(cluster, "munged"):
        found = red(cluster, "munge")
    assert f"{cluster.dir}/log/munged.log" in found["munge"]["todo"]
    assert found["slurmctld"]["todo"] == "repair first: munge"
    assert not {"hub", "proxy", "prometheus", "container", "ports"} & bad(found)
    wait_green(cluster)


def test_strangers_on_ports_and_rules_that_are_gone(cluster: Cluster) -> None:
    rule = render.sudoers_path(cluster.local.layout)
    hidden = rule.with_name(f"{rule.name}.off")  # sudo reads no file with a dot in its name
    port = cluster.config.service.port
    with stopped(cluster, "service", "proxy", "prometheus", "view"):
        rule.rename(hidden)
        try:
            with socket.create_server(("127.0.0.1", port)):
                found = red(cluster, "service")
        finally:
            hidden.rename(rule)
    # Without the view, the discovery's file grows old.
    assert bad(found) - {"discovery"} == {
        *("ports", "service", "proxy", "prometheus", "targets", "alertmanager", "view"),
        *("sudo rule", "helper"),
    }
    assert f"{port} (service) by " in found["ports"]["found"]
    assert "another port" in found["ports"]["todo"]
    assert "the hub may not submit" in found["sudo rule"]["found"]
    assert f"carme up --dir {cluster.dir}" in found["sudo rule"]["todo"]
    assert found["targets"]["todo"] == "repair first: prometheus"
    assert found["helper"]["todo"] == "repair first: sudo rule"
    wait_green(cluster)


def test_a_sudo_rule_too_many_is_named(cluster: Cluster) -> None:
    rule = render.sudoers_path(cluster.local.layout)
    more = rule.with_name(f"{rule.name}-more")
    more.write_text(f"{cluster.config.hub.user} ALL=(root) NOPASSWD: /usr/bin/true\n")
    try:
        found = doctor(cluster)["sudo rule"]
    finally:
        more.unlink()
    assert found["level"] == "fault"
    assert found["found"].endswith(": /usr/bin/true as root")
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
    found = doctor(cluster, "--config", str(config))
    # Whether it still starts depends on what was hit.
    assert bad(found) - {"container"} == {"images"}
    assert "the checksum of" in found["images"]["found"]
    assert "carme images build" in found["images"]["todo"]
    assert not bad(doctor(cluster))
