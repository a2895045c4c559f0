import time
from pathlib import Path

import pytest

from carme.config import SlurmSettings
from carme.errors import (
    CarmeError,
    ConfigError,
    DeniedError,
    InputError,
    MissingError,
    UnavailableError,
)
from carme.slurm.command_runner import (
    SlurmCommandRunner,
    clean_environment,
    explain_refusal,
    failure,
    first_line,
    output,
    with_retry,
)


def test_runs_with_a_clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", "/elsewhere")
    monkeypatch.setenv("SBATCH_ACCOUNT", "other")
    conf = tmp_path / "slurm.conf"
    conf.touch()
    run = SlurmCommandRunner.of(SlurmSettings(conf=conf))
    shown = output(run(["env"]), "env")
    assert f"SLURM_CONF={conf}" in shown
    assert "SBATCH_ACCOUNT" not in shown
    assert "TZ=UTC" in shown


def test_bin_folder_comes_first() -> None:
    assert clean_environment(SlurmSettings(bin=Path("/opt/x")))["PATH"].startswith("/opt/x:")


def test_missing_configuration_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r"no file /nowhere/slurm\.conf"):
        SlurmCommandRunner.of(SlurmSettings(conf=Path("/nowhere/slurm.conf")))


def test_broken_bytes_and_standard_input() -> None:
    run = SlurmCommandRunner(5, {"PATH": "/usr/bin:/bin"})
    assert run(["printf", r"a\377b"]).stdout == "a\ufffdb"
    assert run(["cat"], "hello").stdout == "hello"
    assert run(["cat"]).stdout == ""


def test_failures() -> None:
    run = SlurmCommandRunner(0.2, {"PATH": "/usr/bin:/bin"})
    with pytest.raises(MissingError, match="no program does-not-exist"):
        run(["does-not-exist"])
    started = time.monotonic()
    with pytest.raises(UnavailableError, match=r"did not answer within 0\.2 s"):
        run(["sleep", "10"])
    assert time.monotonic() - started < 3
    with pytest.raises(InputError):
        output(run(["false"]), "false")


@pytest.mark.parametrize(
    ("printed", "kind"),
    [
        (
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            UnavailableError,
        ),
        ("error: Munge encode failed: Failed to access", UnavailableError),
        ("sacct: error: Sending PersistInit msg: Connection refused", UnavailableError),
        ("scancel: error: Kill job error on job id 9: Invalid job id specified", MissingError),
        ("scancel: error: Kill job error on job id 9: Access/permission denied", DeniedError),
        ("scontrol: fatal: Unable to process configuration file", ConfigError),
        ("sbatch: error: something new", InputError),
        ("", InputError),
    ],
)
def test_what_commands_say(printed: str, kind: type[CarmeError]) -> None:
    assert type(failure(printed, "x")) is kind


def test_a_broken_slurm_conf_is_not_the_user_s_fault() -> None:
    printed = "sbatch: fatal: Unable to process configuration file\n"
    assert isinstance(explain_refusal(printed), ConfigError)


def test_first_line() -> None:
    assert first_line("\n\nsbatch: error: Batch job failed\nmore") == "Batch job failed"


def test_retry_backs_off_and_gives_up() -> None:
    now, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    def away() -> None:
        raise UnavailableError("away")

    with pytest.raises(UnavailableError):
        with_retry(away, 10, sleep, lambda: now[0])
    assert pauses == [0.25, 0.5, 1, 2, 4, 2.25]
    assert now[0] == 10


def test_retry_until_it_is_back() -> None:
    tries = iter([UnavailableError("a"), UnavailableError("b"), None])

    def call() -> str:
        problem = next(tries)
        if problem:
            raise problem
        return "back"

    assert with_retry(call, 10, lambda _: None) == "back"


def test_other_errors_are_not_tried_again() -> None:
    def call() -> None:
        raise InputError("no")

    with pytest.raises(InputError):
        with_retry(call, 10, lambda _: pytest.fail("slept"))
