"""Running programs: argument lists, time limits, and errors that quote what the program said."""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from carme.errors import MissingError, UnavailableError


def run(
    argv: Sequence[str | Path],
    *,
    input: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    log: Path | None = None,
) -> str:
    """What the program printed; a failure is an error that ends with its last lines.

    With `log` the output also goes to that file, so that long work can be watched.
    """
    words = [str(word) for word in argv]
    environment = {**os.environ, **(env or {})}
    try:
        done = subprocess.run(
            words,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            env=environment,
            timeout=timeout,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise MissingError(f"the program {words[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{words[0]} did not end within {timeout:.0f} s") from None
    if log:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"$ {' '.join(words)}\n{done.stdout}\n")
    if done.returncode:
        tail = "\n    ".join(done.stdout.strip().splitlines()[-5:])
        hint = f"the whole output is in {log}" if log else ""
        raise UnavailableError(f"{' '.join(words[:3])} failed:\n    {tail}", hint)
    return done.stdout


def run_module(
    module: str, *words: str, env: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Run a Python module as a program, handing each line it prints to `say` as it comes."""
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
