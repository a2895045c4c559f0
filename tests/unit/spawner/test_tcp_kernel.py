"""`carme-tcp-kernel`, run as Jupyter runs it: with a program that listens on the ports of its
connection file in place of a kernel."""

import json
import os
import signal
import socket
import subprocess
import sys
from importlib.resources import files

import pytest

from support.programs import first_line, running_program

PROGRAM = str(files("carme_spawner").joinpath("inside/tcp_kernel.py"))
CHANNELS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
KERNEL = """
import json, os, signal, socket, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever starts the tests may ignore it
info = json.load(open(sys.argv[1].removeprefix("--f=")))
ports = [number for name, number in info.items() if name.endswith("_port")]
listeners = [socket.create_server((info["ip"], port)) for port in ports]
print(info["transport"], oct(os.stat(sys.argv[1].removeprefix("--f=")).st_mode & 0o777))
print(os.environ["CARME_TCP_KERNEL"], open("/proc/net/dev").read().count(":"), flush=True)
try:
    while True:
        for listener in listeners:
            client = listener.accept()[0]
            client.sendall(client.recv(100).upper())
            client.close()
except KeyboardInterrupt:
    sys.exit(7)
"""


def can_have_own_network():
    argv = ["unshare", "--user", "--net", "true"]
    return subprocess.run(argv, capture_output=True).returncode == 0


@pytest.fixture
def file(tmp_path):
    """A connection file as Jupyter writes it."""
    path = tmp_path / "kernel-1.json"
    info = {name: number for number, name in enumerate(CHANNELS, 1)}
    path.write_text(json.dumps({**info, "transport": "ipc", "ip": f"{tmp_path}/kernel-1-ipc"}))
    return path


def run(*arguments):
    """The program in a process group of its own, as Jupyter starts it."""
    return running_program([sys.executable, PROGRAM, *arguments], stderr=subprocess.PIPE)


@pytest.mark.parametrize("option", [[], ["--share-network"]])
def test_each_socket_leads_to_the_port_of_its_channel(file, option):
    if not option and not can_have_own_network():
        pytest.skip("this machine allows no user namespaces")
    (file.parent / "kernel-1-ipc-1").write_text("left by an earlier start")
    with run(*option, sys.executable, "-c", KERNEL, f"--f={file}") as kernel:
        assert first_line(kernel) == "tcp 0o600\n"
        devices = kernel.stdout.readline().split()[1]
        assert option or devices == "1"
        for number in range(1, 6):
            path = file.parent / f"kernel-1-ipc-{number}"
            assert path.stat().st_mode & 0o777 == 0o700
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
                client.sendall(b"hello")
                assert client.recv(100) == b"HELLO"
                assert client.recv(100) == b""
        os.killpg(kernel.pid, signal.SIGINT)
        assert kernel.wait(20) == 7
        assert not (file.parent / "tcp-kernel-1.json").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"transport": "tcp"}, "asks for tcp instead of ipc"),
        (None, "names no connection file"),
    ],
)
def test_a_wrong_command_is_explained(tmp_path, content, message):
    path = tmp_path / "kernel-1.json"
    if content:
        path.write_text(json.dumps(content))
    with run("true", str(path)) as program:
        assert message in program.communicate(timeout=20)[1]
        assert program.returncode == 1
