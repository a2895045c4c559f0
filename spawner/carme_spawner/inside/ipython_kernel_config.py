# Every IPython kernel of the session reads this file, also when no Jupyter program started it: in
# the container it is /etc/ipython/ipython_kernel_config.py. The kernel refuses TCP, where any user
# of the node could read its cells and outputs, and its debugger, which listens on TCP and runs
# whatever a user of the node sends. CARME_TCP_KERNEL=1 allows both.
import os
import sys

from ipykernel.kernelapp import IPKernelApp
from jupyter_core.paths import jupyter_runtime_dir

REFUSED = """carme: this kernel does not start: it would listen on TCP, where all users of this node
could read its cells and outputs. The program that started it does not read Jupyter's configuration,
which selects unix sockets. To allow TCP, set CARME_TCP_KERNEL=1 in the environment of that program.
"""
NO_DEBUGGER = """carme: the debugger is off: it listens on TCP, where all users of this node could
run code in this kernel. Docs: "Use other kernels and the debugger"."""

init_sockets, start = IPKernelApp.init_sockets, IPKernelApp.start


def init_unix_sockets(app):
    if app.transport == "tcp":
        sys.exit(REFUSED)
    init_sockets(app)


def start_without_debugger(app):
    # Not earlier: the kernel imports the debugger after it has redirected its warnings.
    try:
        from ipykernel.debugger import Debugger
    except ImportError:
        pass  # ipykernel before version 6 has none
    else:
        Debugger.start = refuse_debugger
    start(app)


def refuse_debugger(debugger):
    debugger.log.warning(NO_DEBUGGER)
    return False


if not os.environ.get("CARME_TCP_KERNEL"):
    # For `ipython kernel`; other programs tell the kernel its sockets in a connection file.
    c.IPKernelApp.transport = "ipc"  # noqa: F821
    c.IPKernelApp.ip = f"{jupyter_runtime_dir()}/kernel-{os.getpid()}-ipc"  # noqa: F821
    IPKernelApp.init_sockets = init_unix_sockets
    IPKernelApp.start = start_without_debugger
