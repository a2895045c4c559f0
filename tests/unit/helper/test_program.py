import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from carme.config import Config
from carme.errors import DeniedError, InputError, MissingError, UnavailableError
from carme.helper.models import VERBS
from carme.helper.program import Helper, check_user, run_verb
from carme.slurm.command_runner import SlurmCommandRunner, explain_refusal
from support.images import sif_bytes

SIF = b"#!/usr/bin/env run-singularity\n\x00SIF_MAGIC\x0001\x00"


@pytest.fixture
def helper(tmp_path: Path) -> Helper:
    return Helper(Config(), tmp_path, SlurmCommandRunner(5, {"PATH": "/nowhere"}))


@pytest.mark.parametrize(
    ("verb", "request_"),
    [
        ("submit", {"name": "../x", "script": "#!/bin/sh\n"}),
        ("submit", {"name": "x", "script": "no shebang"}),
        ("submit", {"name": "x", "script": "#!/bin/sh\n", "files": {"a/b": "x"}}),
        ("submit", {"name": "x", "script": "#!/bin/sh\n", "argv": ["--uid=0"]}),
        ("cancel", {"job_id": "1; reboot"}),
        ("cancel", {"job_id": "1"}),
        ("cancel", {"job_id": -1}),
        ("cancel", {"job_id": True}),
        ("cancel", {}),
        ("signal", {"job_id": 1, "signal": "KILL; reboot"}),
        ("extend", {"job_id": 1, "seconds": 0}),
        ("tail-log", {"name": "x", "file": "../../.ssh/id_rsa"}),
        ("tail-log", {"name": "x", "lines": 10**9}),
        ("check-image", {"path": "relative.sif"}),
        ("run-anything", {}),
    ],
)
def test_requests_are_checked(helper: Helper, verb: str, request_: dict[str, object]) -> None:
    with pytest.raises(InputError):
        run_verb(helper, verb, json.dumps(request_))


def test_there_are_six_verbs() -> None:
    assert sorted(VERBS) == ["cancel", "check-image", "extend", "signal", "submit", "tail-log"]


def test_not_json(helper: Helper) -> None:
    with pytest.raises(InputError):
        run_verb(helper, "cancel", "{")


def test_without_slurm_and_without_view(helper: Helper) -> None:
    with pytest.raises(MissingError, match="no program scancel"):
        run_verb(helper, "cancel", '{"job_id": 1}')
    with pytest.raises(UnavailableError, match="carme-view"):
        run_verb(helper, "extend", '{"job_id": 1, "seconds": 600}')


def test_a_missing_home(tmp_path: Path) -> None:
    homeless = Helper(Config(), tmp_path / "gone", SlurmCommandRunner(5, {"PATH": "/nowhere"}))
    with pytest.raises(MissingError, match=r"home folder .* does not exist"):
        run_verb(homeless, "submit", '{"name": "x", "script": "#!/bin/sh"}')


@pytest.mark.parametrize("uid", [0, 1, 999, 65534])
def test_system_users_are_refused(uid: int) -> None:
    with pytest.raises(DeniedError):
        check_user(uid, "root")


def test_strangers_are_refused() -> None:
    with pytest.raises(DeniedError):
        check_user(4_000_000, "root")


@pytest.mark.parametrize(
    "argv", [[], ["cancel"], ["--config", "carme.toml", "cancel"], ["--config", "/x", "a", "b"]]
)
def test_the_program_takes_exactly_one_form(argv: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "carme.helper.program", *argv],
        input="{}",
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["reason"] in {"input", "config"}
    assert done.stderr == ""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be refused for being root")
def test_the_program_refuses_root(tmp_path: Path) -> None:
    path = tmp_path / "carme.toml"
    path.write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "carme.helper.program", "--config", str(path), "cancel"],
        input='{"job_id": 1}',
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert json.loads(done.stdout)["error"]["reason"] == "denied"


@pytest.mark.parametrize(
    ("printed", "reason", "words"),
    [
        ("Invalid account or account/partition combination specified", "denied", "no account"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "input", "longer"),
        ("Requested node configuration is not available", "input", "no node"),
        ("Invalid qos specification", "denied", "quality of service"),
        ("invalid partition specified: x\nInvalid partition name specified", "input", "partition"),
        ("Unable to contact slurm controller (connect failure)", "unavailable", "not answer"),
        ("Something else entirely", "input", "Something else"),
    ],
)
def test_refusals_in_plain_words(printed: str, reason: str, words: str) -> None:
    error = explain_refusal(f"sbatch: error: Batch job submission failed: {printed}\n")
    assert (error.reason, words in error.message) == (reason, True), error.message


def test_the_limit_is_named() -> None:
    printed = (
        "sbatch: error: QOSMaxGRESPerUser\n"
        "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
        "(job submit limit, user's size and/or time limits)\n"
    )
    assert "QOSMaxGRESPerUser" in explain_refusal(printed).message


def test_an_image_has_its_real_path_and_size(tmp_path: Path) -> None:
    image = tmp_path / "base.sif"
    image.write_bytes(sif_bytes())
    (tmp_path / "latest.sif").symlink_to(image)
    config = Config.model_validate({"images": {"own_images": True}})
    helper = Helper(config, tmp_path, SlurmCommandRunner(5, {}))
    answer = run_verb(helper, "check-image", json.dumps({"path": f"{tmp_path}/latest.sif"}))
    assert answer == {"path": str(image), "size_bytes": image.stat().st_size}
