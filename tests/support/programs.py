"""Programs that tests start and talk to through pipes."""

import os
import select
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress


@contextmanager
def running_program(
    argv: Sequence[str], stderr: "int | None" = None
) -> "Iterator[subprocess.Popen[str]]":
    """The program with pipes for input and output; killed afterwards with its children."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        cwd="/",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # all of them have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()


def first_line(process: "subprocess.Popen[str]", seconds: float = 60) -> str:
    """The first line of the program's output; fails if it writes nothing within `seconds`."""
    assert process.stdout
    assert select.select([process.stdout], [], [], seconds)[0], f"{process.args} writes nothing"
    return process.stdout.readline()
