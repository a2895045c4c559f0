"""The log of one build: every line goes to a file, the telling ones to whoever watches."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from types import TracebackType

from carme.errors import MissingError
from carme.units import format_duration
from carme_containers.build_user import BuildUser

Progress = Callable[[str], None]
SAY_SECONDS = 5
_NOISE = re.compile(r"\x1b\[[0-9;]*m|^ *\d+\.\d ")
_TELLING = re.compile(r"(E:|ERROR|error:|npm error|\w*Error:|FATAL|.*No space left)")


class BuildLog:
    """Opened for one build of one image."""

    def __init__(self, path: Path, title: str, progress: Progress) -> None:
        self.path = path
        self.title = title
        self.progress = progress
        self._file = path.open("w", encoding="utf-8")
        self._started = self._said = time.monotonic()
        self._step = "starting"

    def __enter__(self) -> "BuildLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def say(self, text: str) -> None:
        """Tell whoever watches, at once; the clock is shown beside it from now on."""
        self._step = text
        self.progress(f"{self.title}: {text}")

    def line(self, text: str) -> None:
        """A line of output; an empty one only lets the clock be shown."""
        now = time.monotonic()
        if text:
            self._file.write(f"{now - self._started:6.1f} {text.rstrip()}\n")
            self._file.flush()
            self._step = build_step(text) or self._step
        if now - self._said > SAY_SECONDS:
            self.progress(f"{self.title}: {self._step} ({format_duration(now - self._started)})")
            self._said = now

    def reason(self) -> str:
        """The line that says why a build failed."""
        return explain_log(self.path.read_text(encoding="utf-8", errors="replace"))

    def run(self, command: list[str], environ: dict[str, str], cwd: Path, user: BuildUser) -> int:
        """The exit code of `command`, its output in this log; it is stopped when we are."""
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environ,
                cwd=cwd,
                start_new_session=True,
                **user.identity(),
            )
        except FileNotFoundError:
            raise MissingError(f"{command[0]} is not there") from None
        try:
            for line in _lines(process):
                self.line(line)
            return process.wait()
        finally:
            if process.poll() is None:
                _stop(process)
            if process.stdout:
                process.stdout.close()


def build_step(line: str) -> str:
    """What a line of a build's output tells a person; empty for most."""
    text = _NOISE.sub("", line).strip()
    if found := re.match(r"INFO:\s+(Starting build|Running post|Creating SIF|Extracting)", text):
        return {"Starting build": "fetching", "Running post": "installing"}.get(
            found[1], found[1].replace("SIF", "the image file").lower()
        )
    if found := re.match(
        r"I: (Retrieving|Validating|Extracting|Unpacking|Configuring) (\S+)", text
    ):
        return f"{found[1].lower()} {found[2].rstrip('.')}"
    if found := re.match(r"(Collecting|Downloading|Unpacking|Setting up) (\S+)", text):
        return f"{found[1].lower()} {found[2].rsplit('/')[-1]}"
    if text.startswith("Installing collected packages"):
        return "installing Python packages"
    if found := re.match(r"Step (\d+/\d+) :\s*(\w+)", text):
        return f"step {found[1]}: {found[2]}"
    return ""


def explain_log(text: str) -> str:
    """The line of a failed build's log that says why."""
    lines = [_NOISE.sub("", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line][-200:]
    telling = [line for line in lines if _TELLING.match(line)]
    # Apptainer's FATAL often says only that the recipe's script failed: what that said is better.
    better = [line for line in telling if not line.startswith("FATAL")]
    if not better and telling and "%post" in telling[-1]:
        better = [line for line in lines if not re.match(r"FATAL|INFO|WARNING|\+ ", line)]
    return (better or telling or lines or ["it wrote nothing"])[-1][:300]


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """The output of `process`, with an empty line whenever it has been silent for a while."""
    lines: Queue[str | None] = Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=SAY_SECONDS)
        except Empty:
            yield ""
            continue
        if line is None:
            return
        yield line


def _stop(process: subprocess.Popen[str]) -> None:
    """End a build with all it started; Apptainer removes its own files when asked politely."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(20)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        return
