"""Every way in which a session ends, and the message for its user."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from support.cluster import wait_for
from support.hub import User
from support.slurm_live import take_cpu_node

SMALL = {"partition": "cpu", "gpus": 0, "cpus": 1, "memory_gb": 1, "hours": 0.5}
AT_THE_END = """
import atexit, pathlib
home = pathlib.Path.home()
atexit.register(lambda: home.joinpath("kernel-ended").write_text("cleanly"))
home.joinpath("kernel-started").touch()
"""
HOG = "block = bytearray(3 * 2**30)\n"


@pytest.fixture
def ben(cluster):
    """A user without a session, before and after."""
    person = User.fresh(cluster, cluster.users[1])
    yield person
    person.stop(60)


def home(person):
    return person.web.get(f"{person.url}/hub/home", timeout=20).text


def state(cluster, job_id):
    states = cluster.run(["sacct", "-n", "-P", "-X", "-j", job_id, "-o", "state"]).stdout.split()
    return states[0] if states else ""


def put(cluster, person, path, text):
    """A file in the user's home."""
    cluster.run_as(person.name, ["mkdir", "-p", str(Path(path).parent)])
    cluster.run_as(person.name, ["tee", path], input=text)


def test_stopping_ends_the_kernels_first_and_again_is_fine(cluster, ben):
    startup = f"/home/{ben.name}/.ipython/profile_default/startup/end.py"
    put(cluster, ben, startup, AT_THE_END)
    try:
        ben.start(**SMALL)
        [job] = cluster.jobs(ben.name)
        assert ben.server("POST", "/api/kernels", json={"name": "python3"}).status_code == 201
        wait_for(Path(f"/home/{ben.name}/kernel-started").exists, 60, "the kernel")
        first = ben.api("DELETE", f"/users/{ben.name}/server")
        second = ben.api("DELETE", f"/users/{ben.name}/server")
        assert (first.status_code, second.status_code) in {(202, 202), (204, 204), (202, 204)}
        ben.stop()
        read = ["cat", f"/home/{ben.name}/kernel-ended"]
        assert cluster.run_as(ben.name, read).stdout == "cleanly"
        # Not cancelled: the single-user server ended, and with it the job.
        assert wait_for(
            lambda: state(cluster, job["id"]) in ("COMPLETED", "FAILED"), 20, "the job's record"
        )
    finally:
        cluster.run(
            ["rm", "-f", startup, *(f"/home/{ben.name}/kernel-{n}" for n in ("ended", "started"))]
        )


def test_a_server_that_does_not_listen_is_cancelled_after_the_grace(cluster, ben):
    ben.start(**SMALL)
    [job] = cluster.jobs(ben.name)
    frozen = [
        process
        for process in psutil.process_iter(["username", "cmdline"])
        if process.info["username"] == ben.name
        and any("jupyterhub-singleuser" in word for word in process.info["cmdline"] or ())
    ]
    assert frozen
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    ben.stop(60)
    assert time.monotonic() - started >= cluster.config.session.stop_seconds
    wait_for(lambda: state(cluster, job["id"]).startswith("CANCELLED"), 30, "the job is cancelled")


def test_more_memory_than_asked_for(cluster, ben):
    config = f"/home/{ben.name}/.jupyter/jupyter_server_config.py"
    put(cluster, ben, config, HOG)
    try:
        ben.spawn(**SMALL)
        wait_for(lambda: not ben.state(), 60, "the spawn's end")
        page = ben.web.get(f"{ben.url}/hub/spawn-pending/{ben.name}", timeout=20).text
        assert "used more memory than it asked for" in page
    finally:
        cluster.run(["rm", "-f", config])


def test_an_image_that_is_gone_when_the_job_starts(cluster, ben):
    [sif] = cluster.config.images.folder.glob("base-*.sif")
    away = sif.with_suffix(".away")
    other = take_cpu_node(cluster)
    try:
        ben.spawn(**SMALL)
        wait_for(
            lambda: [j["state"] for j in cluster.jobs(ben.name)] == ["PENDING"], 30, "it waits"
        )
        sif.rename(away)
        cluster.run(["scancel", other])
        wait_for(lambda: not ben.state(), 60, "the spawn's end")
        page = ben.web.get(f"{ben.url}/hub/spawn-pending/{ben.name}", timeout=20).text
        assert "The session failed." in page
        assert sif.name in page, "the log says which file is missing"
        # The image is no longer offered.
        refused = ben.spawn(**SMALL, image="base")
        assert (refused.status_code, "there is no image" in refused.text) == (400, True)
    finally:
        cluster.run(["scancel", other])
        if away.exists():
            away.rename(sif)


def test_a_job_that_has_to_make_room(cluster, ben):
    conf = cluster.local.layout.slurm_conf
    before = conf.read_text()
    qos = ["sacctmgr", "-i", "modify", "qos", "short", "set"]
    conf.write_text(before + "PreemptType=preempt/qos\nPreemptMode=CANCEL\n")
    cluster.run([*qos, "preempt=normal"], check=True)
    restart(cluster, "slurmctld")
    try:
        ben.start(**SMALL)
        [job] = cluster.jobs(ben.name)
        cluster.run_as(
            cluster.users[0],
            [
                *("sbatch", "-p", "cpu", "--qos=short", "-c", "8", "--mem=100", "-t", "5"),
                *("-D", "/tmp", "-o", "/dev/null"),
            ],
            input="#!/bin/sh\nsleep 60\n",
        )
        wait_for(lambda: not ben.state(), 90, "the hub notices")
        assert state(cluster, job["id"]) == "PREEMPTED"
        assert "had to make room for a job with a higher priority" in home(ben)
    finally:
        cluster.run(["scancel", "-u", cluster.users[0]])
        conf.write_text(before)
        cluster.run([*qos, "preempt="], check=True)
        restart(cluster, "slurmctld")


def restart(cluster, part):
    cluster.stop(part)
    cluster.start(part)
    wait_for(lambda: cluster.is_healthy(part), 30, f"{part} is back")


def test_a_node_whose_slurmd_is_gone(cluster, ben):
    ben.start(**SMALL)
    cluster.stop("slurmd-cpu01")
    try:
        # Slurm gives a node a minute (SlurmdTimeout) before it is down.
        wait_for(lambda: not ben.state(), 180, "the hub notices")
        assert "The node that the session ran on failed." in home(ben)
    finally:
        cluster.start("slurmd-cpu01")
        wait_for(lambda: cluster.is_healthy("slurmd-cpu01"), 60, "cpu01 is back")


def test_folders_of_past_sessions_go_after_a_while(cluster, ben):
    sessions = Path(f"/home/{ben.name}/.carme/sessions")
    script = f"""
import os, pathlib
for name in ("named-old", "named-new"):
    folder = pathlib.Path("{sessions}") / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "session.log").write_text("x")
old = pathlib.Path("{sessions}/named-old")
for path in (old / "session.log", old):
    os.utime(path, (0, 0))
"""
    cluster.run_as(ben.name, ["python3", "-"], input=script)
    ben.start(**SMALL)
    assert sorted(path.name for path in sessions.iterdir()) == ["default", "named-new"]
