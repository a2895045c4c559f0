"""Running programs: argument lists, time limits, and typed errors."""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from carme.errors import MissingError, UnavailableError


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a finished program printed; bytes that are not UTF-8 are replaced."""

    stdout: str
    stderr: str
    returncode: int


def execute(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout_seconds: float = 60,
    cwd: str | Path | None = None,
    merge_stderr: bool = False,
) -> CommandResult:
    """Run a program to its end, whatever its exit code; `env` replaces the whole environment.

    Raises MissingError if there is no such program, UnavailableError if it cannot be started or
    does not end in time. With `merge_stderr`, both outputs are in `stdout`, in their order.
    """
    words = [str(word) for word in argv]
    try:
        process = subprocess.run(
            words,
            input=None if stdin is None else stdin.encode(),
            stdin=subprocess.DEVNULL if stdin is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge_stderr else subprocess.PIPE,
            env=None if env is None else dict(env),
            cwd=cwd,
            timeout=timeout_seconds,
            check=False,
        )
    except FileNotFoundError:
        raise MissingError(f"no program {words[0]}") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{words[0]} did not answer within {timeout_seconds:g} s") from None
    except OSError as error:
        raise UnavailableError(f"{words[0]} could not be run: {error.strerror}") from error
    return CommandResult(_text(process.stdout), _text(process.stderr), process.returncode)


def run(
    argv: Sequence[str | Path],
    *,
    input: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    log: Path | None = None,
) -> str:
    """What the program printed; UnavailableError with its last lines if it fails.

    `env` is added to this process' environment. With `log` the output also goes to that file.
    """
    environment = {**os.environ, **(env or {})}
    result = execute(argv, stdin=input, env=environment, timeout_seconds=timeout, merge_stderr=True)
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
    module: str, *words: str, env: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Run a Python module as a program and pass each line that it prints to `say` at once."""
    argv = [sys.executable, "-m", module, *words]
    last: deque[str] = deque(maxlen=5)
    with subprocess.Popen(
        argv,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            last.append(line.rstrip())
            say(f"  {line.rstrip()}")
    if process.returncode:
        raise UnavailableError("\n    ".join([f"{module} {' '.join(words)} failed:", *last]))


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", errors="replace")
