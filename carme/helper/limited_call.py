"""The check of an image in a process of its own, with limits on time, memory and files: the image
may have been made to use up all of them."""

import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from carme.errors import (
    CarmeError,
    InputError,
    UnavailableError,
    error_from_json,
    error_to_json,
)

_LIMITS = {
    resource.RLIMIT_AS: 4 * 2**30,  # Go programs reserve more than they use
    resource.RLIMIT_CPU: 60,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_NOFILE: 256,
}
_MAX_ANSWER_BYTES = 2**16
_END_SECONDS = 1.0


def call_limited(function: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The result of `function`, which can be written as JSON; raises the CarmeError that it raised.

    It runs in a process and a session of its own. Whatever is left of them is killed at the end or
    after `seconds`, also if the process waits for a file system that does not answer.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(function, writing)
    os.close(writing)
    try:
        text = _read(reading, seconds)
    finally:
        os.close(reading)
        _end(child)
    try:
        answer: dict[str, Any] = json.loads(text)
    except ValueError:
        raise InputError("the image takes more memory or time than its check may use") from None
    if failure := error_from_json(answer):
        raise failure
    return answer


def _answer(function: Callable[[], dict[str, Any]], writing: int) -> None:
    """In the child: write the answer and end. Nothing of the parent is run on the way out."""
    try:
        os.setsid()
        for limit, value in _LIMITS.items():
            hard = resource.getrlimit(limit)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(limit, (value, value))
        try:
            answer = function()
        except CarmeError as error:
            answer = error_to_json(error)
        os.write(writing, json.dumps(answer).encode()[:_MAX_ANSWER_BYTES])
    except MemoryError:
        os._exit(1)
    except BaseException as error:  # a bug: its traceback must not go on into the parent's code
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)
    os._exit(0)


def _read(reading: int, seconds: float) -> bytes:
    """What the child wrote; UnavailableError if it does not end in time."""
    end = time.monotonic() + seconds
    text = b""
    while len(text) < _MAX_ANSWER_BYTES:
        left = end - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            raise UnavailableError(
                f"the image could not be checked within {seconds:g} s",
                "try again; a large image is faster from a local disk",
            )
        chunk = os.read(reading, _MAX_ANSWER_BYTES)
        if not chunk:
            break
        text += chunk
    return text


def _end(child: int) -> None:
    """Kill what is left of the child's session, and wait a moment for the child's end."""
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    end = time.monotonic() + _END_SECONDS
    while os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < end:
        time.sleep(0.01)
