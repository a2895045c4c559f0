"""The limits of a check: what is left of it, and what it may use."""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from carme.errors import DeniedError, InputError, UnavailableError
from carme.helper.limited_call import call_limited


def is_there(pid: int) -> bool:
    """Whether the process runs: one that waits for its parent has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_answer_and_an_error() -> None:
    assert call_limited(lambda: {"pid": os.getpid()}, 10) != {"pid": os.getpid()}

    def denied() -> dict[str, Any]:
        raise DeniedError("no", "ask")

    with pytest.raises(DeniedError, match=r"no \(ask\)"):
        call_limited(denied, 10)


def test_nothing_is_left_of_it() -> None:
    def leaves_a_process() -> dict[str, Any]:
        return {"child": subprocess.Popen(["sleep", "300"]).pid}

    answer = call_limited(leaves_a_process, 10)
    end = time.monotonic() + 10
    while is_there(answer["child"]) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_there(answer["child"])


def test_one_that_hangs_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    def hangs() -> dict[str, Any]:
        (tmp_path / f"pid-{os.getpid()}").mkdir()  # it may not write files
        (tmp_path / "pipe").read_bytes()
        return {}

    with pytest.raises(UnavailableError, match=r"could not be checked within 5 s"):
        call_limited(hangs, 5)
    [trace] = tmp_path.glob("pid-*")
    assert not is_there(int(trace.name.removeprefix("pid-")))


@pytest.mark.parametrize("bytes_wanted", [2**20, 6 * 2**30])
def test_memory_is_limited(bytes_wanted: int) -> None:
    def takes_memory() -> dict[str, Any]:
        return {"size": len(bytearray(bytes_wanted))}

    if bytes_wanted < 2**30:
        assert call_limited(takes_memory, 60) == {"size": bytes_wanted}
    else:
        with pytest.raises(InputError, match="more memory or time"):
            call_limited(takes_memory, 60)


def test_it_writes_no_file(tmp_path: Path) -> None:
    def writes() -> dict[str, Any]:
        try:
            (tmp_path / "file").write_text("x")
        except OSError as error:
            return {"errno": error.errno}
        return {}

    assert call_limited(writes, 10) == {"errno": 27}
