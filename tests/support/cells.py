"""Running a cell in a user's own kernel, over the websocket that a notebook uses."""

import asyncio
import json
import ssl
import uuid
from typing import Any
from urllib.parse import urlsplit

from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from support.hub import User


def start_kernel(user: User, name: str = "python3") -> str:
    """The id of a new kernel in the user's session."""
    kernel = user.server("POST", "/api/kernels", json={"name": name})
    assert kernel.status_code == 201, kernel.text
    return str(kernel.json()["id"])


def run_cell(user: User, code: str, seconds: float = 60, kernel: str = "") -> str:
    """What `code` prints in the kernel; in a new kernel if none is given."""
    content = {
        "code": code,
        "silent": False,
        "store_history": False,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": True,
    }
    request = ("shell", "execute_request", content)
    printed = ""
    for response in _ask(user, kernel or start_kernel(user), request, "status", seconds):
        if response["header"]["msg_type"] == "stream":
            printed += response["content"]["text"]
        if response["header"]["msg_type"] == "error":
            raise AssertionError("\n".join(response["content"]["traceback"]))
    return printed


def ask_debugger(user: User, kernel: str, command: str, **arguments: Any) -> dict[str, Any]:
    """The kernel's reply to a request of JupyterLab's debugger."""
    content = {"type": "request", "seq": 1, "command": command, "arguments": arguments}
    responses = _ask(user, kernel, ("control", "debug_request", content), "debug_reply", 60)
    return dict(responses[-1]["content"])


def _ask(
    user: User, kernel: str, request: tuple[str, str, dict[str, Any]], last: str, seconds: float
) -> list[dict[str, Any]]:
    """The kernel's replies to a request, up to the one of kind `last`, which is no busy status."""
    path = f"/user/{user.name}/api/kernels/{kernel}/channels"
    return asyncio.run(asyncio.wait_for(_converse(user, path, request, last), seconds))


async def _converse(
    user: User, path: str, request: tuple[str, str, dict[str, Any]], last: str
) -> list[dict[str, Any]]:
    channel, kind, content = request
    url = urlsplit(user.session_url)
    origin = f"{url.scheme}://{url.netloc}"
    address = f"{origin}{path}".replace("http", "ws", 1)
    cookies = "; ".join(
        f"{cookie.name}={cookie.value}"
        for cookie in user.web.cookies
        if cookie.domain.removesuffix(".local") == url.hostname and path.startswith(cookie.path)
    )
    context = None
    if address.startswith("wss"):
        context = ssl.create_default_context(cafile=str(user.web.verify))
    connection = await websocket_connect(
        HTTPRequest(address, headers={"Cookie": cookies, "Origin": origin}, ssl_options=context)
    )
    message_id = uuid.uuid4().hex
    header = {
        "msg_id": message_id,
        "msg_type": kind,
        "username": "",
        "session": message_id,
        "version": "5.3",
    }
    message: dict[str, Any] = {
        "header": header,
        "parent_header": {},
        "metadata": {},
        "content": content,
        "channel": channel,
        "buffers": [],
    }
    await connection.write_message(json.dumps(message))
    responses: list[dict[str, Any]] = []
    while True:
        raw = await connection.read_message()
        assert raw is not None, "the kernel closed the connection"
        response = json.loads(raw)
        if response.get("parent_header", {}).get("msg_id") != message_id:
            continue
        responses.append(response)
        state = response["content"].get("execution_state", "idle")
        if response["header"]["msg_type"] == last and state == "idle":
            connection.close()
            while await connection.read_message() is not None:
                pass  # the rest, until the other side has closed
            return responses
