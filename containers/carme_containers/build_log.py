"""The log of one build: every line goes to a file, important ones to the caller."""

import re
import time
from pathlib import Path

from carme.system.programs import ProgressCallback, stream
from carme.units import format_duration
from carme_containers.build_environment import BuildUser

PROGRESS_SECONDS = 5
_NOISE = re.compile(r"\x1b\[[0-9;]*m|^ *\d+\.\d ")
_ERROR_LINE = re.compile(r"(E:|ERROR|error:|npm error|\w*Error:|FATAL|.*No space left)")


class BuildLog:
    """The log of one build of one image."""

    def __init__(self, path: Path, title: str, progress: ProgressCallback) -> None:
        self.path = path
        self.title = title
        self.progress = progress
        self._file = path.open("w", encoding="utf-8")
        self._started = self._reported = time.monotonic()
        self._step = "starting"

    def __enter__(self) -> "BuildLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def step(self, text: str) -> None:
        """Report a new step at once; `line` repeats it with the time that has passed."""
        self._step = text
        self.progress(f"{self.title}: {text}")

    def line(self, text: str) -> None:
        """Write a line of output; an empty one only reports progress."""
        now = time.monotonic()
        if text:
            self._file.write(f"{now - self._started:6.1f} {text.rstrip()}\n")
            self._file.flush()
            self._step = build_step(text) or self._step
        if now - self._reported > PROGRESS_SECONDS:
            self.progress(f"{self.title}: {self._step} ({format_duration(now - self._started)})")
            self._reported = now

    def reason(self) -> str:
        """The line that says why a build failed."""
        return explain_log(self.path.read_text(encoding="utf-8", errors="replace"))

    def run(self, command: list[str], environ: dict[str, str], cwd: Path, user: BuildUser) -> int:
        """Run `command`, log its output, return its exit code. An exception here stops it."""
        return stream(
            command,
            self.line,
            env=environ,
            cwd=cwd,
            user=user.identity,
            own_session=True,
            silence_seconds=PROGRESS_SECONDS,
        )


def build_step(line: str) -> str:
    """The step of the build that a line of its output shows; empty for most lines."""
    text = _NOISE.sub("", line).strip()
    if match := re.match(r"INFO:\s+(Starting build|Running post|Creating SIF|Extracting)", text):
        return {"Starting build": "fetching", "Running post": "installing"}.get(
            match[1], match[1].replace("SIF", "the image file").lower()
        )
    debootstrap = r"I: (Retrieving|Validating|Extracting|Unpacking|Configuring) (\S+)"
    if match := re.match(debootstrap, text):
        return f"{match[1].lower()} {match[2].rstrip('.')}"
    if match := re.match(r"(Collecting|Downloading|Unpacking|Setting up) (\S+)", text):
        return f"{match[1].lower()} {match[2].rsplit('/')[-1]}"
    if text.startswith("Installing collected packages"):
        return "installing Python packages"
    if match := re.match(r"Step (\d+/\d+) :\s*(\w+)", text):
        return f"step {match[1]}: {match[2]}"
    return ""


def explain_log(text: str) -> str:
    """The line of a failed build's log that says why."""
    lines = [_NOISE.sub("", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line][-200:]
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    # Apptainer's FATAL often says only that the recipe's script failed: prefer the script's output.
    causes = [line for line in errors if not line.startswith("FATAL")]
    if not causes and errors and "%post" in errors[-1]:
        causes = [line for line in lines if not re.match(r"FATAL|INFO|WARNING|\+ ", line)]
    return (causes or errors or lines or ["it wrote nothing"])[-1][:300]
