"""Hostile options are refused with a message or taken literally; nothing is injected."""

import json
import re
from pathlib import Path

import pytest
import requests

from support.cluster import wait_for
from support.hub import User

MARK = "carme-was-here"
SHELL = [
    f"$(touch /tmp/{MARK})",
    f"`touch /tmp/{MARK}`",
    f"; touch /tmp/{MARK}",
    f"| touch /tmp/{MARK}",
    f"&& touch /tmp/{MARK}",
    f"gpu\ntouch /tmp/{MARK}",
    f"gpu\r\n#SBATCH --wrap='touch /tmp/{MARK}'",
    "gpu\n#SBATCH --uid=0",
    "gpu #SBATCH --output=/etc/passwd",
    f"'; touch /tmp/{MARK}; '",
    f'"; touch /tmp/{MARK}; "',
    f"${{IFS}}touch${{IFS}}/tmp/{MARK}",
    f"{{{{ cycler.__init__.__globals__.os.popen('touch /tmp/{MARK}') }}}}",
    "{% include '/etc/passwd' %}",
    "%j%u%x",
    "--wrap=id",
    "-p",
    "~root",
    "$HOME",
    "*",
]
PATHS = ["../../etc/passwd", "/etc/passwd", "/root/x.sif", "..", ".", "base/../../x", "base:../1"]
PATHS += ["base\x00.sif", "file:///etc/passwd", "docker://alpine", "/home/nobody-here/x.sif"]
UNICODE = ["ｇｐｕ", "gpu\u202e", "gp\u200bu", "\ufeffgpu", "gpu\u2028", "ɡpu", "𝓰𝓹𝓾", "gpu\u0000"]
UNICODE += ["\U0001f4a9", "é" * 70, "\x1b[31mgpu", "<script>alert(1)</script>", '"><img src=x>']
NUMBERS = [
    "-1",
    "0",
    "1e999",
    "nan",
    "inf",
    "-inf",
    "1_000",
    "0x10",
    "９",
    "1.5.2",
    "99999999999999",
]
NUMBERS += ["--1", "1;id", "NaN", "1e-400", " ", "null", "true", "[]", "{}", "10" * 60]
TYPES = [None, True, [], {}, ["gpu"], {"a": 1}, 10**40, -(10**40), [[[[]]]], {"$ref": "x"}]
FOREIGN = ["root", "normal,short", "+normal", "-1", "research,root", "nobody-has-this", "MAINT"]
KEYS = ["cmd", "prologue", "srun", "exec_prefix", "batch_script", "req_prologue", "user", "uid"]
KEYS += ["__class__", "image_path", "environment", "notebook_dir", "ip", "port", "partition ", ""]

RIGHTS = ("account", "qos", "reservation")

CASES = [
    *({field: text} for field in ("partition", "gpu_type", "image") for text in SHELL + UNICODE),
    *({field: text} for field in RIGHTS for text in SHELL[::3] + UNICODE[::4] + FOREIGN),
    *({"image": text} for text in PATHS),
    *({field: text} for field in ("gpus", "cpus", "memory_gb", "hours") for text in NUMBERS),
    *(
        {field: value}
        for field in ("partition", "gpus", "hours", "image", "account", "qos")
        for value in TYPES
    ),
    *({key: "id"} for key in KEYS),
]
LEGAL = [{"gpus": "0"}, {"hours": "1e-400"}]
"""Odd to look at, but a right choice: not sent here, since they would start a session."""


@pytest.fixture(scope="module")
def ann(cluster):
    return User.fresh(cluster, cluster.users[0])


def test_there_are_many():
    assert len(CASES) >= 200


def test_over_rest(cluster, ann):
    before = {path.name for path in Path("/tmp").iterdir()}
    for case in CASES:
        if case in LEGAL and not any(value is True for value in case.values()):
            continue
        response = ann.spawn(**case)
        assert response.status_code == 400, (case, response.text)
        assert response.json()["message"], case
        assert response.json()["errors"], case
        assert all(error["message"] for error in response.json()["errors"]), case
    assert cluster.jobs(ann.name) == []
    assert MARK not in {path.name for path in Path("/tmp").iterdir()} - before
    assert not list(Path(f"/home/{ann.name}").glob(f"**/{MARK}"))


def test_over_the_form(cluster, ann):
    page = ann.web.get(f"{ann.url}/hub/spawn", timeout=20)
    token = re.search(r'action="[^"]*_xsrf=([^"&]+)', page.text)
    assert token
    good = {
        "partition": "cpu",
        "gpus": "0",
        "cpus": "1",
        "memory_gb": "1",
        "hours": "0.1",
        "image": "base",
    }
    for case in CASES:
        [(name, value)] = case.items()
        if case in LEGAL or not isinstance(value, str) or not value.strip() or not name.strip():
            continue
        response = ann.web.post(
            f"{ann.url}/hub/spawn?_xsrf={token[1]}", data={**good, name: value}, timeout=20
        )
        assert response.status_code == 400, (case, response.status_code)
        assert "<script>alert(1)" not in response.text
        assert "carme-form-problem" in response.text, case
    assert cluster.jobs(ann.name) == []
    assert not Path(f"/tmp/{MARK}").exists()


def test_a_body_that_is_no_object_is_refused(ann):
    for body in (b"[]", b"1", b'"x"', b"{", b"\xff"):
        response = ann.api("POST", f"/users/{ann.name}/server", data=body)
        assert response.status_code == 400, (body, response.text)


def test_the_message_says_what_is_allowed(ann):
    response = ann.spawn(partition="none", gpus=1)
    assert json.loads(response.text)["message"].startswith("Partition: there is no partition none")


CALLS = {
    "warnings": "read:servers",
    "outlook?partition=cpu": "servers",
    "advice?partition=cpu&workload=resnet-50": "servers",
}
"""Carme's endpoints at the hub that need a scope. What is free, every user may know."""


def test_a_token_can_do_only_what_its_scopes_say(ann):
    def token(*scopes):
        body = {"note": "test", "scopes": [f"{scope}!user" for scope in scopes]}
        response = ann.api("POST", f"/users/{ann.name}/tokens", json=body)
        assert response.status_code == 201, response.text
        return {"Authorization": f"token {response.json()['token']}"}

    def status(path, headers, **kwargs):
        method = "POST" if kwargs else "GET"
        url = f"{ann.url}/hub/api/carme/{path}"
        return requests.request(method, url, headers=headers, timeout=30, **kwargs).status_code

    powerless = token("read:users:activity")
    more = {"server": "", "minutes": 10}
    ann.start(partition="cpu", gpus=0, cpus=1, memory_gb=1, hours=0.5)
    try:
        for path, scope in CALLS.items():
            assert status(path, powerless) == 403, path
            allowed = token(scope)
            # No advice within a second is a 503.
            wait_for(lambda p=path, t=allowed: status(p, t) == 200, 20, f"an answer of {path}")
        assert status("extend", powerless, json=more) == 403
        assert status("extend", token("read:servers"), json=more) == 403
        assert status("extend", token("servers"), json=more) == 200
    finally:
        ann.stop()
