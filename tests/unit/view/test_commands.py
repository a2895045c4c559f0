"""`carme nodes` and `carme queue` at eighty columns."""

import json
import re
from pathlib import Path

from click.testing import CliRunner

from carme.errors import ConfigError
from carme.jobs.terminal import printable, short
from carme.view import commands
from carme.view.client import ViewClient
from support.slurm_memory import ALICE, Cluster, RunningView, config


def test_commands_read_the_view(tmp_path: Path) -> None:
    with RunningView(Cluster(), config(tmp_path)) as serving:
        check(serving, tmp_path)


def check(serving: RunningView, tmp_path: Path) -> None:
    path = tmp_path / "carme.toml"
    path.write_text(f'[view]\nsocket = "{serving.path}"\n')
    ViewClient(serving.path).refresh(5)
    runner = CliRunner(env={"COLUMNS": "80"})
    shown = runner.invoke(commands.nodes, ["--config", str(path)])
    assert "gpu01" in shown.output
    assert "6/8" in shown.output
    assert re.search(r"^read \d s ago$", shown.output, re.MULTILINE)
    assert max(map(len, shown.output.splitlines())) <= 80
    listed = runner.invoke(commands.queue, ["--config", str(path), "--all"])
    assert "alice" in listed.output
    assert "gpu: 2 running, 0 waiting" in listed.output
    assert re.search(r"^read \d s ago$", listed.output, re.MULTILINE)
    assert max(map(len, listed.output.splitlines())) <= 80
    parsed = json.loads(
        runner.invoke(commands.queue, ["--config", str(path), "-a", "--json"]).output
    )
    assert [job["id"] for job in parsed] == [1, 2]
    parsed = json.loads(runner.invoke(commands.nodes, ["--config", str(path), "--json"]).output)
    assert parsed[0]["cpus_free"] == 6


def test_reading_directly_needs_slurm(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    path = tmp_path / "carme.toml"
    path.write_text(f'[view]\nsocket = "{tmp_path}/none"\n[slurm]\nconf = "{conf}"\n')
    shown = CliRunner().invoke(commands.nodes, ["--config", str(path)])
    assert isinstance(shown.exception, ConfigError)


def test_terminals_are_not_at_the_mercy_of_job_names() -> None:
    assert printable("a\x1b[2Jb\n") == "a?[2Jb?"
    assert short("x" * 30) == "x" * 9 + "…"
    array = ALICE.model_copy(update={"array_job_id": 5, "array_task_id": 1})
    assert array.label == "5_1"
    waiting = ALICE.model_copy(update={"array_job_id": 5, "array_tasks": "2-4%1"})
    assert waiting.label == "5_[2-4%1]"
