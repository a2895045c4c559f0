"""For `verify` scripts: a running JupyterLab server."""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PORT = 8888  # the server chooses another one if this is in use
START_SECONDS = 90


class Server:
    """A running JupyterLab server."""

    def __init__(self, process: subprocess.Popen[bytes], info: dict[str, str]) -> None:
        self.process = process
        self.address = info["url"]
        self.token = info["token"]

    def ask(self, path: str, seconds: float = 60) -> str:
        """The body of `path`; requests are repeated until the server answers."""
        headers = {"Authorization": f"token {self.token}"}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + seconds
        while True:
            code = self.process.poll()
            assert code is None, f"the server ended with code {code}"
            try:
                # A new request each time: urllib counts the redirections of a request.
                request = urllib.request.Request(self.address + path, headers=headers)
                with opener.open(request, timeout=30) as response:
                    return str(response.read(), "utf-8")
            except OSError as error:
                if time.monotonic() > deadline:
                    raise AssertionError(f"/{path} does not answer: {error}") from None
                time.sleep(0.2)


@contextmanager
def running_server() -> Iterator[Server]:
    """Start a JupyterLab server; its log is printed if the caller fails."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        environ = {key: value for key, value in os.environ.items() if "JUPYTER" not in key}
        environ |= {"HOME": folder, "JUPYTER_RUNTIME_DIR": folder}
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1"]
        command += [f"--port={PORT}", "--ServerApp.port_retries=500"]
        with (home / "log").open("w+") as log:
            process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, cwd=folder)
            try:
                yield Server(process, _wait_for_info(process, home))
            except BaseException:
                log.seek(0)
                print(log.read()[-3000:], file=sys.stderr)
                raise
            finally:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _wait_for_info(process: subprocess.Popen[bytes], folder: Path) -> dict[str, str]:
    """The server's own description with its URL and token, written once it has a port."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        code = process.poll()
        assert code is None, f"the server ended with code {code}"
        for path in folder.glob("jpserver-*.json"):
            try:
                return dict(json.loads(path.read_text()))
            except ValueError:
                pass  # not yet complete
        time.sleep(0.1)
    raise AssertionError(f"the server did not start within {START_SECONDS} s")
