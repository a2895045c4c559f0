"""A session with idle GPUs is warned and ended; one that runs code only gets a note."""

import json
import tomllib
import uuid

import pytest
import tomli_w
from tornado.httpclient import HTTPRequest
from tornado.ioloop import IOLoop
from tornado.websocket import websocket_connect

from support.cluster import wait_for
from support.hub import User

GPU = {"partition": "gpu", "gpus": 1, "cpus": 1, "memory_gb": 1, "hours": 0.5}
IDLE_SECONDS, NOTICE_SECONDS = 36, 12


@pytest.fixture(scope="module")
def impatient(cluster):
    """A hub with short idle times."""
    file = cluster.dir / "etc/carme.toml"
    before = file.read_text()
    changed = tomllib.loads(before)
    changed["session"]["gpu_idle_hours"] = IDLE_SECONDS / 3600
    changed["session"]["gpu_idle_notice_minutes"] = NOTICE_SECONDS / 60

    def restart(text):
        file.write_text(text)
        cluster.stop("hub")
        cluster.start("hub")
        wait_for(lambda: cluster.is_healthy("hub"), 60, "the hub is back")

    restart(tomli_w.dumps(changed))
    yield cluster
    restart(before)


def run_code(user, code):
    """Start a kernel and have it run `code`; returns once it is busy."""
    kernel = user.server("POST", "/api/kernels", json={"name": "python3"}).json()["id"]
    cookies = "; ".join(f"{c.name}={c.value}" for c in user.web.cookies)
    where = f"{user.session_url}/api/kernels/{kernel}/channels".replace("http", "ws", 1)
    head = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "version": "5.3"}
    message = {
        "header": {**head, "username": "", "session": uuid.uuid4().hex},
        "parent_header": {},
        "metadata": {},
        "content": {"code": code, "silent": False, "store_history": False, "allow_stdin": False},
        "channel": "shell",
        "buffers": [],
    }

    async def send():
        origin = user.session_url.partition("/user/")[0]
        request = HTTPRequest(where, headers={"Cookie": cookies, "Origin": origin})
        socket = await websocket_connect(request)
        await socket.write_message(json.dumps(message))
        while True:
            reply = json.loads(await socket.read_message())
            if reply["content"].get("execution_state") == "busy":
                return

    IOLoop(make_current=False).run_sync(send, timeout=60)


def warnings_of(user):
    return user.api("GET", "/carme/warnings").json()


def test_idle_is_ended_and_working_is_told(impatient):
    cluster = impatient
    ann, ben = (User.fresh(cluster, name) for name in cluster.users[:2])
    try:
        for person in (ann, ben):
            person.start(**GPU)
        run_code(ben, "import time; time.sleep(600)")
        wait_for(lambda: warnings_of(ann), 150, "a warning")
        assert "did nothing with its GPU" in warnings_of(ann)[""]
        page = ann.web.get(f"{ann.url}/hub/home", timeout=20).text
        assert "unless you run something" in page
        wait_for(lambda: not ann.state(), 180, "the end of the idle session")
        wait_for(lambda: not cluster.jobs(ann.name), 30, "the end of its job")
        page = ann.web.get(f"{ann.url}/hub/home", timeout=20).text
        assert "so it was ended" in page
        wait_for(lambda: warnings_of(ben), 90, "the busy one is told")
        assert "works, but not with its GPU" in warnings_of(ben)[""]
        assert ben.state()["ready"]

        def told_inside():
            """The warning that the extension in JupyterLab reads."""
            return ben.server("GET", "/carme/time").json()["warning"]

        warning = wait_for(told_inside, 60, "the session itself knows")
        assert "works, but not with its GPU" in warning
        assert warnings_of(ann) == {}, "and nobody else is"
    finally:
        ann.stop()
        ben.stop()
