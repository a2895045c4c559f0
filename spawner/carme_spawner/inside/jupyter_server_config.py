# Jupyter in the container reads this file, which turns on the extension for the time left.
# Not through PYTHONPATH, which kernels would inherit.
import os
import sys
from pathlib import Path

sys.path.append(str(Path(os.environ["CARME_JUPYTER"]) / "python"))
c.ServerApp.jpserver_extensions.update({"carme_session": True})  # noqa: F821
