import os
import time
from pathlib import Path

import pytest

from carme.errors import MissingError, UnavailableError
from carme.system.programs import execute, run


def test_output_and_exit_code() -> None:
    result = execute(["sh", "-c", "cat; echo wrong >&2; exit 3"], stdin="hello")
    assert (result.stdout, result.stderr, result.returncode) == ("hello", "wrong\n", 3)
    both = execute(["sh", "-c", "echo a; echo b >&2; echo c"], merge_stderr=True)
    assert both.stdout == "a\nb\nc\n"
    assert execute(["printf", r"a\377b\r\n"]).stdout == "a\ufffdb\r\n"
    assert execute(["cat"]).stdout == "", "nothing is read from this process' input"


def test_environment_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "1")
    path = os.environ["PATH"]
    assert "INHERITED" in execute(["env"]).stdout
    assert "INHERITED" not in execute(["env"], env={"PATH": path}).stdout
    assert "INHERITED" in run(["env"], env={"MORE": "1"})
    assert execute(["pwd"], cwd=tmp_path).stdout.strip() == str(tmp_path)


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no program does-not-exist"):
        execute(["does-not-exist"])
    started = time.monotonic()
    with pytest.raises(UnavailableError, match=r"sleep did not answer within 0\.2 s"):
        execute(["sleep", "10"], timeout_seconds=0.2)
    assert time.monotonic() - started < 3
    plain = tmp_path / "plain"
    plain.touch()
    with pytest.raises(UnavailableError, match="could not be run: Permission denied"):
        execute([plain])


def test_a_failure_quotes_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(
        UnavailableError, match=r"9\n    no luck \(the whole output is in"
    ) as caught:
        run(["sh", "-c", "seq 9; echo no luck >&2; false"], log=log)
    assert "    5\n" not in caught.value.message
    assert log.read_text().startswith("$ sh -c ")
