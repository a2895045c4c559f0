"""Running a cell in a user's own kernel, over the websocket that a notebook uses."""

import asyncio
import json
import ssl
import uuid
from typing import Any

from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from support.hub import User


def run_cell(user: User, code: str, seconds: float = 60) -> str:
    """What `code` prints in a new kernel of the user's session."""
    kernel = user.server("POST", "/api/kernels", json={"name": "python3"})
    assert kernel.status_code == 201, kernel.text
    path = f"/user/{user.name}/api/kernels/{kernel.json()['id']}/channels"
    return asyncio.run(asyncio.wait_for(_execute(user, path, code), seconds))


async def _execute(user: User, path: str, code: str) -> str:
    address = f"{user.url}{path}".replace("http", "ws", 1)
    cookies = "; ".join(
        f"{cookie.name}={cookie.value}"
        for cookie in user.web.cookies
        if path.startswith(cookie.path)
    )
    context = None
    if address.startswith("wss"):
        context = ssl.create_default_context(cafile=str(user.web.verify))
    request = HTTPRequest(
        address, headers={"Cookie": cookies, "Origin": user.url}, ssl_options=context
    )
    connection = await websocket_connect(request)
    message_id = uuid.uuid4().hex
    header = {
        "msg_id": message_id,
        "msg_type": "execute_request",
        "username": "",
        "session": message_id,
        "version": "5.3",
    }
    content = {
        "code": code,
        "silent": False,
        "store_history": False,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": True,
    }
    message: dict[str, Any] = {
        "header": header,
        "parent_header": {},
        "metadata": {},
        "content": content,
        "channel": "shell",
        "buffers": [],
    }
    await connection.write_message(json.dumps(message))
    printed = ""
    while True:
        raw = await connection.read_message()
        assert raw is not None, "the kernel closed the connection"
        response = json.loads(raw)
        if response.get("parent_header", {}).get("msg_id") != message_id:
            continue
        kind = response["header"]["msg_type"]
        if kind == "stream":
            printed += response["content"]["text"]
        if kind == "error":
            raise AssertionError("\n".join(response["content"]["traceback"]))
        if kind == "status" and response["content"]["execution_state"] == "idle":
            connection.close()
            return printed
