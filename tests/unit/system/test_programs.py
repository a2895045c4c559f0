import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from carme.errors import MissingError, UnavailableError
from carme.system.programs import CommandResult, execute, run, stream


def test_output_and_exit_code() -> None:
    result = execute(["sh", "-c", "cat; echo wrong >&2; exit 3"], stdin="hello")
    assert (result.stdout, result.stderr, result.returncode) == ("hello", "wrong\n", 3)
    both = execute(["sh", "-c", "echo a; echo b >&2; echo c"], stderr=subprocess.STDOUT)
    assert both.stdout == "a\nb\nc\n"
    assert execute(["printf", r"a\377b\r\n"]).stdout == "a\ufffdb\r\n"
    assert execute(["cat"]).stdout == "", "nothing is read from this process' input"


def test_environment_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "1")
    path = os.environ["PATH"]
    assert "INHERITED" in execute(["env"]).stdout
    assert "INHERITED" not in execute(["env"], env={"PATH": path}).stdout
    assert "INHERITED" in run(["env"], added_env={"MORE": "1"})
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


def test_a_program_that_cannot_be_killed_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: "subprocess.Popen[bytes]") -> None:
        raise PermissionError(1, "Operation not permitted")  # as for sudo, which runs as root

    pid_file = tmp_path / "pid"
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", denied)
        with pytest.raises(UnavailableError, match="sh did not answer within 1 s"):
            execute(["sh", "-c", f"echo $$ > {pid_file}; exec sleep 60"], timeout_seconds=1)
    process = psutil.Process(int(pid_file.read_text()))
    assert process.is_running()
    process.kill()
    assert process.wait(10) is not None or not process.is_running()


def test_a_failure_quotes_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(
        UnavailableError, match=r"9\n    no luck \(the whole output is in"
    ) as caught:
        run(["sh", "-c", "seq 9; echo no luck >&2; false"], log=log)
    assert "    5\n" not in caught.value.message
    assert log.read_text().startswith("$ sh -c ")


def test_the_last_line_of_a_result_leaves_out_the_program_s_name() -> None:
    result = CommandResult("", "x\nsacctmgr: error: Connection refused\n", 1)
    assert result.last_line == "Connection refused"
    assert CommandResult("", "\x1b[91mERROR  : no room\n\x1b[0m", 1).last_line == "ERROR  : no room"
    assert CommandResult("done\n", "\x1b[0m", 1).last_line == "done"
    assert CommandResult("", "", 3).last_line == "exit code 3"


def test_output_to_a_file(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        result = execute(["sh", "-c", "echo kept; echo wrong >&2"], stdout=file)
    assert (result.stdout, result.stderr) == ("", "wrong\n")
    assert (tmp_path / "out").read_text() == "kept\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
def test_another_user_without_further_groups() -> None:
    assert execute(["id", "-u"], user=(65534, 65534)).stdout.strip() == "65534"
    assert execute(["id", "-G"], user=(65534, 65534)).stdout.strip() == "65534"


def test_lines_arrive_at_once_and_silence_is_reported(tmp_path: Path) -> None:
    lines: list[str] = []
    command = ["sh", "-c", "echo one; sleep 0.5; echo two >&2; exit 3"]
    environment = dict(os.environ)
    assert stream(command, lines.append, env=environment, silence_seconds=0.2) == 3
    assert lines[0] == "one\n"
    assert lines[-1] == "two\n"
    assert "" in lines
    with pytest.raises(MissingError, match="no program does-not-exist"):
        stream(["does-not-exist"], lines.append, env=environment)


def test_a_program_in_its_own_session_ends_with_everything_it_started(tmp_path: Path) -> None:
    started: list[int] = []

    def interrupt(line: str) -> None:
        started.append(int(line))
        raise KeyboardInterrupt

    command = ["sh", "-c", "sleep 60 & echo $!; wait"]
    with pytest.raises(KeyboardInterrupt):
        stream(command, interrupt, env=dict(os.environ), own_session=True)
    end = time.monotonic() + 5
    while psutil.pid_exists(started[0]) and psutil.Process(started[0]).status() != "zombie":
        assert time.monotonic() < end, "the grandchild still runs"
        time.sleep(0.05)
