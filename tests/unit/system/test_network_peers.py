"""Who is at the other end of a connection."""

import os
import socket
import subprocess
import sys

import pytest

from carme.system.network_peers import address_key, peer_name

CLIENT = """
import os, socket, sys
if len(sys.argv) > 3: os.setuid(int(sys.argv[3]))
socket.create_connection((sys.argv[1], int(sys.argv[2]))).recv(1)
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("uid", [None, 65534])
def test_users_of_this_machine_are_told_apart(host: str, uid: int | None) -> None:
    if uid and os.getuid():
        pytest.skip("only root can become another user")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"no {host} here")
    with listener:
        port = str(listener.getsockname()[1])
        argv = [sys.executable, "-c", CLIENT, host, port, *([str(uid)] if uid else [])]
        with subprocess.Popen(argv):
            connection, _ = listener.accept()
            with connection:
                assert peer_name(connection) == f"uid {uid or os.getuid()}"


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("10.1.2.3", "10.1.2.3"),
        (" 10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("nonsense", "unknown"),
        ("", "unknown"),
    ],
)
def test_addresses_of_one_host_are_one_peer(host: str, key: str) -> None:
    assert address_key(host) == key


def test_a_client_that_is_gone_is_not_root() -> None:
    """The kernel tells 0 for a socket that no process holds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        connection, _ = listener.accept()
        with connection:
            assert peer_name(connection) == f"uid {os.getuid()}"
            client.close()
            assert peer_name(connection) == "127.0.0.1"
