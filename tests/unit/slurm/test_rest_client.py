"""The client of slurmrestd, against a slurmrestd that speaks one version of its API."""

import json
from collections.abc import Sequence
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from carme.errors import MissingError, UnavailableError
from carme.slurm import rest_client
from carme.slurm.rest_client import RestClient
from carme.system.programs import CommandResult
from carme.system.unix_http import HttpResponse

NEW = {
    "partitions": [
        {
            "name": name,
            "nodes": {"configured": f"{name}[1-2]", "total": 2},
            "cpus": {"total": 16},
            "partition": {"state": ["UP"]},
            "maximums": {"time": {"set": True, "infinite": False, "number": 120}},
        }
        for name in ("standard", "gpu", "staff")
    ]
}
OLD = {"partitions": [{"name": "standard", "flags": []}, {"name": "gpu", "flags": ["default"]}]}
SCONTROL = (
    "PartitionName=standard Default=NO Hidden=NO State=UP\n"
    "PartitionName=gpu Default=YES Hidden=NO State=UP\n"
    "PartitionName=staff Default=NO Hidden=YES State=UP\n"
)


class Commands:
    """Slurm's commands; counts the calls."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.calls: list[Sequence[str]] = []
        self.problem = problem

    def __call__(self, argv: Sequence[str], stdin: str | None = None) -> CommandResult:
        self.calls.append(argv)
        if self.problem:
            raise self.problem
        return CommandResult(SCONTROL, "", 0)


def client(
    monkeypatch: pytest.MonkeyPatch, version: str, partitions: object, commands: Any
) -> RestClient:
    def request(path: Path, method: str, target: str, **_: object) -> HttpResponse:
        if f"/{version}/" not in target:
            return HttpResponse(404, Message(), b"{}")
        body = partitions if target.endswith("partitions") else {}
        return HttpResponse(200, Message(), json.dumps(body).encode())

    monkeypatch.setattr(rest_client.unix_http, "request", request)
    return RestClient(Path("/run/rest"), commands, 1, 0)


@pytest.mark.parametrize("version", ["v0.0.39", "v0.0.42"])
def test_the_default_partition_where_partitions_have_no_flags(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    partitions = client(monkeypatch, version, NEW, Commands()).partitions()
    assert [p.name for p in partitions if p.default] == ["gpu"]
    assert [p.name for p in partitions if p.hidden] == ["staff"]
    assert [p.max_seconds for p in partitions] == [7200, 7200, 7200], "the rest is slurmrestd's"


def test_flags_need_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands()
    partitions = client(monkeypatch, "v0.0.38", OLD, commands).partitions()
    assert [p.name for p in partitions if p.default] == ["gpu"]
    assert commands.calls == []


def test_without_commands_there_is_no_default(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    commands = Commands(MissingError("no program scontrol"))
    rest = client(monkeypatch, "v0.0.42", NEW, commands)
    for _ in range(2):
        assert [p.name for p in rest.partitions()] == ["standard", "gpu", "staff"]
    assert len([r for r in caplog.records if "no program scontrol" in r.message]) == 1


def test_an_outage_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError):
        client(monkeypatch, "v0.0.42", NEW, Commands(UnavailableError("away"))).partitions()
