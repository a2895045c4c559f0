"""Running programs: argument lists, time limits, and typed errors."""

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO, Any

from carme.errors import MissingError, UnavailableError

STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH for programs that must not depend on the caller's PATH."""
_ERROR_PREFIX = re.compile(r"^(?:[\w-]+: )?(?:error|fatal): ", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STOP_SECONDS = 20
_KILL_SECONDS = 1
_CHUNK_BYTES = 2**16
ProgressCallback = Callable[[str], None]
"""Gets a line for the user when a long task makes progress."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a finished program printed; bytes that are not UTF-8 are replaced."""

    stdout: str
    stderr: str
    returncode: int

    @property
    def last_line(self) -> str:
        """The last line of its errors, or of its output, without colours and `program: error:`."""
        texts = (_COLOUR.sub("", text).strip() for text in (self.stderr, self.stdout))
        lines = next(filter(None, texts), "").splitlines()
        message = _ERROR_PREFIX.sub("", lines[-1].strip()) if lines else ""
        return message or f"exit code {self.returncode}"


def execute(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    stdout: IO[bytes] | int | None = subprocess.PIPE,
    stderr: int | None = subprocess.PIPE,
    env: Mapping[str, str] | None = None,
    timeout_seconds: float | None = 60,
    cwd: str | Path | None = None,
    user: tuple[int, int] | None = None,
    max_output_bytes: int | None = None,
) -> CommandResult:
    """Run a program to its end, whatever its exit code; `env` replaces the whole environment.

    `stdout` and `stderr` are subprocess' (None: those of this process). `user` is the uid and gid
    to run as, without further groups. Raises MissingError if there is no such program,
    UnavailableError if it cannot be started, does not end in time or prints more than
    `max_output_bytes`; then it is killed, or left to itself if it cannot be killed.
    """
    words = [str(word) for word in argv]
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env=None if env is None else dict(env),
            cwd=cwd,
            **_identity(user),
        )
    except OSError as error:
        raise _start_error(words[0], error) from error
    given = None if stdin is None else stdin.encode()
    try:
        if max_output_bytes is None:
            out, err = process.communicate(given, timeout_seconds)
        else:
            out, err = _communicate(process, given or b"", timeout_seconds, max_output_bytes)
    except subprocess.TimeoutExpired:
        _abandon(process)
        raise UnavailableError(f"{words[0]} did not answer within {timeout_seconds:g} s") from None
    except BaseException:
        _abandon(process)
        raise
    return CommandResult(_text(out), _text(err), process.returncode)


def _communicate(
    process: subprocess.Popen[bytes], given: bytes, seconds: float | None, limit: int
) -> tuple[bytes, bytes]:
    """As `process.communicate`, which would keep all that a program prints, however much it is."""
    printed, pipes = (bytearray(), bytearray()), (process.stdout, process.stderr)
    end = None if seconds is None else time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for pipe, output in zip(pipes, printed, strict=True):
            if pipe:
                selector.register(pipe, selectors.EVENT_READ, output)
        if process.stdin:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            ready = selector.select(None if end is None else max(0.0, end - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired(process.args, seconds or 0)
            for key, _ in ready:
                if key.data is None:
                    with suppress(BrokenPipeError):
                        given = given[os.write(key.fd, given[:_CHUNK_BYTES]) :]
                        if given:
                            continue
                    selector.unregister(key.fileobj)
                    _close(process.stdin)
                    continue
                chunk = os.read(key.fd, _CHUNK_BYTES)
                key.data.extend(chunk)
                if len(key.data) > limit:
                    raise UnavailableError(f"it printed more than {limit} bytes")
                if not chunk:
                    selector.unregister(key.fileobj)
    process.wait(None if end is None else max(0.0, end - time.monotonic()))
    for pipe in pipes:
        _close(pipe)
    return bytes(printed[0]), bytes(printed[1])


def _close(pipe: IO[bytes] | None) -> None:
    if pipe:
        with suppress(BrokenPipeError):
            pipe.close()


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and stop waiting for it.

    Only root can kill sudo, and nobody can kill a process that hangs on a file system.
    """
    with suppress(PermissionError):
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_SECONDS)
    for pipe in (process.stdin, process.stdout, process.stderr):
        _close(pipe)
    if process.returncode is None:
        Thread(target=process.wait, name="abandoned program", daemon=True).start()


def stream(
    argv: Sequence[str | Path],
    on_line: Callable[[str], None],
    *,
    env: Mapping[str, str],
    cwd: str | Path | None = None,
    user: tuple[int, int] | None = None,
    own_session: bool = False,
    silence_seconds: float | None = None,
) -> int:
    """Run a program and pass each line that it prints to `on_line` at once; returns its exit code.

    `on_line` also gets an empty line whenever the program was silent for `silence_seconds`. When
    an exception ends this function (a signal, for example), a program in its `own_session` is
    stopped with everything it started; otherwise this function waits for its end.
    """
    words = [str(word) for word in argv]
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(env),
            cwd=cwd,
            start_new_session=own_session,
            **_identity(user),
        )
    except OSError as error:
        raise _start_error(words[0], error) from error
    lines: Queue[str | None] = Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    with process:
        Thread(target=read, daemon=True).start()
        try:
            while True:
                try:
                    line = lines.get(timeout=silence_seconds)
                except Empty:
                    line = ""
                if line is None:
                    return process.wait()
                on_line(line)
        finally:
            if own_session and process.poll() is None:
                _stop_session(process)


def _stop_session(process: subprocess.Popen[str]) -> None:
    """SIGTERM first: a program may remove its temporary files."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return
        return


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    added_env: Mapping[str, str] | None = None,
    timeout_seconds: float = 60,
    log: Path | None = None,
) -> str:
    """What the program printed; UnavailableError with its last lines if it fails.

    `added_env` is added to this process' environment. With `log` the output also goes to that file.
    """
    result = execute(
        argv,
        stdin=stdin,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(added_env or {})},
        timeout_seconds=timeout_seconds,
    )
    words = [str(word) for word in argv]
    if log:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"$ {' '.join(words)}\n{result.stdout}\n")
    if result.returncode:
        tail = "\n    ".join(result.stdout.strip().splitlines()[-5:])
        hint = f"the whole output is in {log}" if log else ""
        raise UnavailableError(f"{' '.join(words[:3])} failed:\n    {tail}", hint)
    return result.stdout


def run_module(
    module: str, *arguments: str, added_env: Mapping[str, str], progress: ProgressCallback
) -> None:
    """Run a Python module as a program and pass each line that it prints to `progress` at once."""
    last: deque[str] = deque(maxlen=5)

    def on_line(line: str) -> None:
        last.append(line.rstrip())
        progress(f"  {line.rstrip()}")

    command = [sys.executable, "-m", module, *arguments]
    if stream(command, on_line, env={**os.environ, **added_env}):
        raise UnavailableError("\n    ".join([f"{module} {' '.join(arguments)} failed:", *last]))


def _identity(user: tuple[int, int] | None) -> dict[str, Any]:
    """Arguments of subprocess that run a program as `user`."""
    return {"user": user[0], "group": user[1], "extra_groups": []} if user else {}


def _start_error(program: str, error: OSError) -> MissingError | UnavailableError:
    if isinstance(error, FileNotFoundError):
        return MissingError(f"no program {program}")
    return UnavailableError(f"{program} could not be run: {error.strerror}")


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", errors="replace")
