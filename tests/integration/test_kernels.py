"""Other users on a session's node cannot read or use its kernels."""

import json
import pwd
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.cells import ask_debugger, run_cell, start_kernel
from support.eavesdropper import listening_ports
from support.hub import User
from support.programs import first_line, running_program

EAVESDROPPER = Path(__file__).parents[1] / "support/eavesdropper.py"
SECRET = "print('sec' + 'ret of ann')"
MODES = """
import json, os, pathlib
folder = pathlib.Path(os.environ["JUPYTER_RUNTIME_DIR"])
modes = {path.name: oct(path.stat().st_mode & 0o777) for path in [folder, *folder.iterdir()]}
print(json.dumps({"folder": str(folder), "modes": modes}))
"""
TCP_KERNEL = """
import os, time
from jupyter_client.manager import KernelManager
kernel = KernelManager()  # without Jupyter's configuration, as papermill does it
kernel.start_kernel(env={**os.environ, %s})
client = kernel.client()
client.start_channels()
try:
    client.wait_for_ready(timeout=30)
    print("ready")
except RuntimeError as error:
    print(error)
    kernel.shutdown_kernel(now=True)
"""
NBCONVERT = """
import json, os, pathlib, subprocess
cell = {"cell_type": "code", "id": "a", "execution_count": None, "metadata": {}, "outputs": []}
cell["source"] = "import os; print(sorted(os.listdir(os.environ['JUPYTER_RUNTIME_DIR'])))"
book = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
pathlib.Path("/tmp/book.ipynb").write_text(json.dumps(book))
command = ["jupyter", "nbconvert", "--to", "notebook", "--execute", "--stdout", "/tmp/book.ipynb"]
done = subprocess.run(command, capture_output=True, text=True)
print(json.loads(done.stdout)["cells"][0]["outputs"][0]["text"] if done.stdout else done.stderr)
"""
IPYTHON_KERNEL = """
import json, os, pathlib, subprocess, time
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
kernel = subprocess.Popen(["ipython", "kernel"], **quiet)
file = pathlib.Path(os.environ["JUPYTER_RUNTIME_DIR"], f"kernel-{kernel.pid}.json")
end = time.monotonic() + 30
while not file.exists() and kernel.poll() is None and time.monotonic() < end:
    time.sleep(0.1)
print(json.loads(file.read_text())["transport"])
kernel.kill()
"""
KERNEL_SPEC = {
    "argv": ["carme-tcp-kernel", "python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
    "display_name": "Python with debugger",
    "language": "python",
    "metadata": {"debugger": True},
}


@pytest.fixture(scope="module")
def ann(cluster):
    """A user with a session."""
    person = User.fresh(cluster, cluster.users[0])
    person.start(partition="cpu", gpus=0, cpus=1, memory_gb=2, hours=0.5)
    yield person
    person.stop()


@pytest.fixture
def kernel(ann):
    """The only kernel of the session."""
    kernel_id = start_kernel(ann)
    assert run_cell(ann, "print(6 * 7)", kernel=kernel_id) == "42\n"
    yield kernel_id
    for running in ann.server("GET", "/api/kernels").json():
        ann.server("DELETE", f"/api/kernels/{running['id']}")


def ports_of(person):
    return listening_ports(pwd.getpwnam(person.name).pw_uid)


@contextmanager
def eavesdropping(cluster, victim):
    """Another user on the node subscribes to all that the victim publishes; a list that gets it."""
    uid = str(pwd.getpwnam(victim.name).pw_uid)
    code = EAVESDROPPER.read_text()
    argv = ["runuser", "-u", cluster.users[1], "--", "/usr/bin/python3", "-c", code, uid]
    heard: list[str] = []
    with running_program(argv) as listener:
        assert int(first_line(listener)) > 0, "not even the server was found"
        yield heard
        heard.append(listener.communicate(timeout=30)[0])


def test_another_user_on_the_node_reads_no_cell(cluster, ann, kernel):
    with eavesdropping(cluster, ann) as heard:
        assert run_cell(ann, SECRET, kernel=kernel) == "secret of ann\n"
    assert "secret of ann" not in heard[0]
    assert "execute_input" not in heard[0]


def test_a_kernel_that_is_allowed_to_use_tcp_is_heard(cluster, ann, kernel):
    """The listener above would hear a kernel if there were something to hear."""
    allowed = TCP_KERNEL % '"CARME_TCP_KERNEL": "1"'
    assert "ready" in run_cell(ann, allowed, kernel=kernel)
    with eavesdropping(cluster, ann) as heard:
        run_cell(ann, f"client.execute_interactive({SECRET!r}, timeout=30)", kernel=kernel)
    run_cell(ann, "client.stop_channels(); kernel.shutdown_kernel(now=True)", kernel=kernel)
    assert "secret of ann" in heard[0]


def test_a_program_that_asks_for_tcp_gets_no_kernel(ann, kernel):
    before = len(ports_of(ann))
    assert "Kernel died" in run_cell(ann, TCP_KERNEL % "", kernel=kernel)
    assert len(ports_of(ann)) == before


def test_sockets_are_in_a_folder_that_only_the_user_can_open(ann, kernel):
    answer = json.loads(run_cell(ann, MODES, kernel=kernel))
    assert answer["folder"].startswith("/tmp/carme-")
    folder = answer["modes"].pop(Path(answer["folder"]).name)
    assert folder == "0o700"
    assert answer["modes"][f"kernel-{kernel}.json"] == "0o600"
    sockets = [name for name in answer["modes"] if name.startswith(f"kernel-{kernel}-ipc-")]
    assert len(sockets) == 5
    assert {answer["modes"][name] for name in sockets} == {"0o700"}


def test_kernels_restart_and_leave_nothing_behind(ann, kernel):
    others = [start_kernel(ann) for _ in range(3)]
    for other in others:
        assert run_cell(ann, "print(6 * 7)", kernel=other) == "42\n"
    for _ in range(2):
        restarted = ann.server("POST", f"/api/kernels/{others[0]}/restart")
        assert restarted.status_code == 200, restarted.text
        assert run_cell(ann, "print('x' in globals()); x = 1", kernel=others[0]) == "False\n"
    for other in others:
        ann.server("DELETE", f"/api/kernels/{other}")
    modes = json.loads(run_cell(ann, MODES, kernel=kernel))["modes"]
    assert not [name for name in modes if any(other in name for other in others)]


def test_the_debugger_does_not_start(ann, kernel):
    """It would run any code that another user of the node sends."""
    before = ports_of(ann)
    assert ask_debugger(ann, kernel, "debugInfo")["body"]["isStarted"] is False
    answer = ask_debugger(ann, kernel, "initialize", clientID="test", adapterID="")
    assert answer["success"] is False
    assert ports_of(ann) == before
    assert run_cell(ann, "print(6 * 7)", kernel=kernel) == "42\n"


def test_programs_in_a_terminal_use_unix_sockets(ann, kernel):
    assert "-ipc-5'" in run_cell(ann, NBCONVERT, kernel=kernel)
    assert run_cell(ann, IPYTHON_KERNEL, kernel=kernel) == "ipc\n"


def test_a_terminal_listens_nowhere(ann, kernel):
    before = ports_of(ann)
    terminal = ann.server("POST", "/api/terminals")
    assert terminal.status_code == 200, terminal.text
    assert ports_of(ann) == before
    ann.server("DELETE", f"/api/terminals/{terminal.json()['name']}")


def test_a_tcp_kernel_in_a_network_of_its_own(cluster, ann, kernel):
    """It runs and restarts, has a debugger, and nobody else reaches it."""
    folder = ".local/share/jupyter/kernels/with-debugger"
    write = f"""
import pathlib
folder = pathlib.Path.home() / {folder!r}
folder.mkdir(parents=True, exist_ok=True)
(folder / "kernel.json").write_text({json.dumps(KERNEL_SPEC)!r})
"""
    run_cell(ann, write, kernel=kernel)
    before = ports_of(ann)
    private = start_kernel(ann, "with-debugger")
    with eavesdropping(cluster, ann) as heard:
        assert run_cell(ann, SECRET, kernel=private) == "secret of ann\n"
        restarted = ann.server("POST", f"/api/kernels/{private}/restart")
        assert restarted.status_code == 200, restarted.text
        assert run_cell(ann, SECRET, kernel=private) == "secret of ann\n"
        assert ask_debugger(ann, private, "initialize", clientID="test", adapterID="")["success"]
        assert ask_debugger(ann, private, "attach")["success"]
    assert "secret of ann" not in heard[0]
    assert ports_of(ann) == before
    devices = run_cell(ann, "print(open('/proc/net/dev').read().count(':'))", kernel=private)
    assert devices == "1\n"
