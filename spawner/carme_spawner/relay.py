"""Runs `srun` for a session: outside of its container, where the site's Slurm is.

The job script starts it on the first node with the path of its socket, the script that enters the
container, and the prefix of variables for Apptainer. Standard library only: nodes need not have
Carme. The `srun` in the container sends its arguments, environment and files. srun starts each task
in the same container, on the task's node.
"""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

# Options of srun that take no value, or take one only after an equals sign. All others take the
# next word. The command follows the options.
# fmt: off
FLAGS = frozenset([
    "bcast", "bell", "compress", "contiguous", "disable-status", "exact", "exclusive",
    "get-user-env", "help", "hold", "immediate", "interactive", "kill-on-bad-exit", "label",
    "multi-prog", "nice", "no-allocate", "no-bell", "no-kill", "oversubscribe", "overcommit",
    "overlap", "preserve-env", "propagate", "pty", "quiet", "quit-on-interrupt", "reboot",
    "send-libs", "spread-job", "test-only", "unbuffered", "usage", "use-min-nodes", "verbose",
    "version", "whole",
])
SHORT_FLAGS = frozenset("EHIKOQVXZhklsuv")
# Variables of the session's own process, or set for each task: srun's tasks do not get them.
OWN_PREFIXES = ("APPTAINER", "JPY_", "JUPYTERHUB_", "PMI", "SINGULARITY", "SLURM")
OWN_VARIABLES = frozenset([
    "CARME_RELAY", "CUDA_VISIBLE_DEVICES", "HOME", "HOSTNAME", "JUPYTER_RUNTIME_DIR", "OLDPWD",
    "PWD", "ROCR_VISIBLE_DEVICES", "SHLVL", "_",
])
# fmt: on


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """srun's own options, and the command after them."""
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        if argument == "--":
            return list(arguments[:index]), list(arguments[index + 1 :])
        if not argument.startswith("-") or argument == "-":
            break
        index += 2 if _takes_next(argument) else 1
    return list(arguments[:index]), list(arguments[index:])


def _takes_next(argument: str) -> bool:
    if argument.startswith("--"):
        return "=" not in argument and argument[2:] not in FLAGS
    for position, letter in enumerate(argument[1:], 1):
        if letter not in SHORT_FLAGS:
            return position == len(argument) - 1  # `-n4` has its value already
    return False


def task_environment(
    caller: Mapping[str, str], job: Mapping[str, str], prefix: str
) -> dict[str, str]:
    """The environment of srun: the job's, and the caller's variables for the tasks' containers."""
    environment = dict(job)
    for name, value in caller.items():
        if name not in OWN_VARIABLES and not name.startswith(OWN_PREFIXES):
            environment[f"{prefix}_{name}"] = value
    # The job was submitted with an empty environment, and srun would do the same.
    environment["SLURM_EXPORT_ENV"] = "ALL"
    if cpus := job.get("SLURM_CPUS_PER_TASK"):
        # Slurm 22.05 and newer read it by this name; without it a task has one core.
        environment["SRUN_CPUS_PER_TASK"] = cpus
    return environment


def serve(connection: socket.socket, task: str, prefix: str) -> None:
    """Run one srun. The caller sends signals as bytes, and gets the exit code as a byte."""
    with connection:
        head, files, _, _ = socket.recv_fds(connection, 4, 3)
        try:
            body = _read(connection, int.from_bytes(head, "big"))
            request = json.loads(body)
            options, command = split(request["argv"])
            task_command = ["/bin/bash", task, *command] if command else []
            folder = request["cwd"] if Path(request["cwd"]).is_dir() else str(Path.home())
            program = shutil.which("srun") or "/usr/bin/srun"
            process = subprocess.Popen(
                [program, *options, *task_command],
                stdin=files[0],
                stdout=files[1],
                stderr=files[2],
                env=task_environment(request["env"], os.environ, prefix),
                cwd=folder,
                start_new_session=True,
            )
        except (OSError, ValueError, KeyError, IndexError) as error:
            if len(files) == 3:
                os.write(files[2], f"srun: {error}\n".encode())
            with suppress(OSError):
                connection.sendall(b"\x01")
            return
        finally:
            for file in files:
                os.close(file)
        threading.Thread(target=_pass_on, args=(connection, process), daemon=True).start()
        code = process.wait()
        with suppress(OSError):  # the caller may be gone
            connection.sendall(bytes([code if code >= 0 else 128 - code]))


def _read(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        chunk = connection.recv(min(65536, length - len(data)))
        if not chunk:
            raise ValueError("the request ended early")
        data += chunk
    return data


def _pass_on(connection: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    """Pass the caller's signals on to srun; end srun when the caller is gone."""
    while process.poll() is None:
        try:
            number = connection.recv(1)
        except OSError:
            number = b""
        process.send_signal(number[0] if number else signal.SIGTERM)
        if not number:
            return


def main(path: str, task: str, prefix: str) -> None:
    """Serve until the job ends."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(64)
    while True:
        connection, _ = server.accept()
        # The folder of the socket has mode 0700; the kernel's record of the peer is a second check.
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", peer)[1] != os.getuid():
            connection.close()
            continue
        threading.Thread(target=serve, args=(connection, task, prefix), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:4])
