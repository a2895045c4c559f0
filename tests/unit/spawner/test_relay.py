"""`srun` in the container, the relay outside of it, and a stand-in for the site's srun."""

import os
import signal
import subprocess
import sys
import threading
from importlib.resources import files
from pathlib import Path

import pytest

from carme_spawner import relay

SRUN = files("carme_spawner").joinpath("srun.py")
STAND_IN = """#!/bin/bash
trap 'echo "got TERM"; exit 9' TERM
printf '%s\\n' "$@"
echo "folder $PWD"
env | grep -E '^(APPTAINERENV_|SRUN_)' | sort
[ "$1" = --wait-here ] && { echo waiting; while :; do sleep 0.05; done; }
cat
echo "to stderr" >&2
exit 7
"""


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("hostname", 0),
        ("-n 2 hostname -f", 2),
        ("-n2 hostname", 1),
        ("--ntasks=2 --label hostname", 2),
        ("--ntasks 2 python3 -n 4", 2),
        ("-l -N 2 -u x", 4),
        ("-lu x", 1),
        ("-lN 2 x", 2),
        ("--mpi=pmix --overlap -w a,b ./a.out --ntasks 3", 4),
        ("--kill-on-bad-exit --nodes=2 orted -mca x", 2),
        ("--version", 1),
        ("", 0),
    ],
)
def test_options_and_command_are_told_apart(words, options):
    argv = words.split()
    assert relay.split(argv) == (argv[:options], argv[options:])


def test_two_hyphens_end_the_options():
    assert relay.split(["-n", "2", "--", "-odd", "x"]) == (["-n", "2"], ["-odd", "x"])


def test_every_flag_of_this_machines_srun_is_known():
    """An option without a value that the table lacks would swallow the command."""
    manual = Path("/usr/share/man/man1/srun.1.gz")
    if not manual.exists():
        pytest.skip("no manual page of srun here")
    text = subprocess.run(["zcat", manual], capture_output=True, text=True).stdout
    import re

    flags = set(re.findall(r"^\\fB\\-\\-([a-z-]+)\\fR(?:, )?$", text, re.MULTILINE))
    assert flags <= relay.FLAGS, sorted(flags - relay.FLAGS)


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """The relay with a socket of its own; srun is the stand-in."""
    (tmp_path / "srun").write_text(STAND_IN)
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    target = (str(tmp_path / "socket"), "/s/task.sh", "APPTAINERENV")
    threading.Thread(target=relay.main, args=target, daemon=True).start()
    while not (tmp_path / "socket").exists():
        pass
    return tmp_path


def client(outside, *words, **more):
    environment = {**os.environ, "CARME_RELAY": str(outside), **more}
    return subprocess.Popen(
        [sys.executable, str(SRUN), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=outside,
        env=environment,
    )


def test_input_output_and_exit_code_pass_through_the_relay(outside):
    odd = "a b$(id)'\""
    process = client(
        outside,
        "--label",
        "python3",
        odd,
        MINE="two\nlines",
        JUPYTERHUB_API_TOKEN="secret",
        SLURM_JOB_ID="1",
        CUDA_VISIBLE_DEVICES="0",
        JUPYTER_RUNTIME_DIR="/tmp/of-this-node",
    )
    out, err = process.communicate("to stdin\n", timeout=20)
    lines = out.splitlines()
    assert lines[:5] == ["--label", "/bin/bash", "/s/task.sh", "python3", odd]
    assert f"folder {outside}" in lines
    assert "APPTAINERENV_MINE=two" in lines
    assert "SRUN_CPUS_PER_TASK=3" in lines
    assert "to stdin" in lines
    assert "secret" not in out
    assert "APPTAINERENV_SLURM" not in out
    assert "APPTAINERENV_CUDA" not in out
    assert "APPTAINERENV_JUPYTER_RUNTIME_DIR" not in out
    assert (err, process.returncode) == ("to stderr\n", 7)


def until_it_waits(process):
    for line in process.stdout:
        if line == "waiting\n":
            return


def test_signals_arrive(outside):
    with client(outside, "--wait-here", "x", "true") as process:
        until_it_waits(process)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "got TERM\n"
        assert process.wait(10) == 9


def test_a_caller_that_is_killed_takes_its_srun_along(outside):
    with client(outside, "--wait-here", "x", "true") as process:
        until_it_waits(process)
        process.kill()
        assert process.stdout.read() == "got TERM\n"


def test_without_a_relay_the_message_is_clear(tmp_path):
    process = client(tmp_path, "hostname")
    _, err = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "cannot reach Slurm any more" in err
