"""A job can use its own GPUs, memory and /tmp only, and no file of the hub."""

import pytest

from support.cluster import wait_for

OPEN = """#!/usr/bin/python3
import errno, os
for number in range(4):
    try:
        os.open(f"/dev/nvidia{number}", os.O_RDWR)
        word = "open"
    except OSError as error:
        # A virtual GPU of the job has no driver, but the kernel allows the call.
        word = "mine" if error.errno == errno.ENXIO else errno.errorcode[error.errno]
    print(number, word)
print("tmp", os.listdir("/tmp"))
"""
HOG = """#!/usr/bin/python3
block = bytearray(600 * 2**20)
print("got it all")
"""


def run_job(cluster, user, script, *options):
    """The output of the job and its final state."""
    output = f"/var/tmp/{user}.out"
    argv = ["sbatch", "--parsable", "--wait", "-D", "/", "-o", output, "-t", "2", *options]
    result = cluster.run_as(user, argv, input=script, timeout=90)
    job = result.stdout.strip()
    assert job.isdigit(), result.stderr
    printed = cluster.run(["cat", output]).stdout
    cluster.run(["rm", "-f", output])

    def state():
        states = cluster.run(["sacct", "-n", "-P", "-X", "-j", job, "-o", "state"]).stdout.split()
        return states[0] if states and states[0] not in ("RUNNING", "PENDING") else ""

    return printed, wait_for(state, 20, "the job in the accounts")


def test_a_job_opens_only_the_gpus_it_holds(cluster):
    options = ("-p", "gpu", "--gres=gpu:virtual-a100:1", "--mem=100")
    printed, state = run_job(cluster, cluster.users[0], OPEN, *options)
    results = [line.split()[1] for line in printed.splitlines()[:4]]
    assert sorted(results) == ["EPERM", "EPERM", "EPERM", "mine"], printed
    assert "tmp []" in printed
    assert state == "COMPLETED"


def test_a_job_cannot_take_more_memory_than_it_asked_for(cluster):
    printed, state = run_job(cluster, cluster.users[0], HOG, "-p", "cpu", "--mem=200")
    assert "got it all" not in printed
    assert state in ("OUT_OF_MEMORY", "FAILED")


def test_limits_of_the_qos_hold(cluster):
    result = cluster.run_as(
        cluster.users[0],
        ["sbatch", "-p", "cpu", "--qos=short", "-t", "120", "-D", "/"],
        input="#!/bin/sh\ntrue\n",
    )
    assert result.returncode != 0 or "QOSMaxWallDurationPerJobLimit" in queue_reasons(cluster)
    cluster.run(["scancel", "-u", cluster.users[0]])


def queue_reasons(cluster):
    return cluster.run(["squeue", "-h", "-o", "%r"]).stdout


@pytest.mark.parametrize(
    "path",
    [
        *("etc/secrets", "etc/supervisord.conf", "etc/slurm/slurmdbd.conf", "etc/munge"),
        *("state/hub", "etc/prometheus/password", "run/supervisor.sock", "run/rest"),
        *("run/carme/jobs", "log/hub.log", "log/proxy.log", "log/supervisord.log"),
    ],
)
def test_users_cannot_read_what_is_secret(cluster, path):
    secret = cluster.dir / path
    assert secret.exists()
    for user in cluster.users:
        assert cluster.run_as(user, ["test", "-r", str(secret)]).returncode != 0
        assert cluster.run_as(user, ["test", "-w", str(secret)]).returncode != 0


def test_the_hub_can_act_only_through_the_helper(cluster):
    hub = cluster.config.hub.user
    for argv in (
        ["sudo", "-n", "id"],
        ["sudo", "-n", "-u", cluster.users[0], "id"],
        ["sudo", "-n", "-u", cluster.users[0], "bash"],
        ["sudo", "-n", "/usr/sbin/mkhomedir_helper", cluster.users[0], "0077", "/root"],
        ["sudo", "-n", "-u", "root", "carme-helper", "--config", "/tmp/x", "submit"],
    ):
        assert cluster.run_as(hub, argv).returncode != 0, argv
    assert cluster.run_as(hub, ["id", "-u"]).stdout.strip() != "0"
