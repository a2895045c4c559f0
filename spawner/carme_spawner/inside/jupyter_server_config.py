# Read by the user's server in the container: turns on the extension that knows the time left.
# Through this file and not PYTHONPATH, which kernels would inherit.
import os
import sys
from pathlib import Path

sys.path.append(str(Path(os.environ["CARME_JUPYTER"]) / "python"))
c.ServerApp.jpserver_extensions.update({"carme_session": True})  # noqa: F821
