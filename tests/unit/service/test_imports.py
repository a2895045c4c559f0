"""What the service brings into its process."""

import subprocess
import sys


def test_the_service_imports_no_commands():
    code = (
        "import sys, carme.service.server;"
        "print([m for m in sys.modules if m.startswith('carme') and 'commands' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
