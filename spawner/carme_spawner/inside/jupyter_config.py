# Every Jupyter program in the session reads this file: kernels listen on unix sockets.
# Over TCP, any user of the node could read their cells and outputs.
import os

from jupyter_core.paths import jupyter_runtime_dir

c.ConnectionFileMixin.transport = "ipc"  # noqa: F821
# The sockets are named after the connection file. Programs that start one kernel (nbconvert) give
# it no name, and Jupyter would then put the sockets into the current folder.
c.KernelManager.connection_file = f"{jupyter_runtime_dir()}/kernel-{os.getpid()}.json"  # noqa: F821
