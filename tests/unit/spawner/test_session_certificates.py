"""Certificates of sessions, on real TLS servers and with JupyterHub's own client."""

import asyncio
import os
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import aiohttp
import pytest
from jupyterhub.httpclient import JupyterHubHTTPClient
from traitlets.config import Config

import support.session_names  # noqa: F401 (resolves names below localhost)
from carme.errors import ConfigError
from carme_spawner.session_certificates import (
    NoCookies,
    SessionCertificates,
    address_of,
    host_name,
)

ANN, BEN = "a1" * 16, "b2" * 16


@pytest.fixture
def certificates(tmp_path):
    certificates = SessionCertificates(tmp_path)
    certificates.publish()
    return certificates


@contextmanager
def session(tmp_path, pem, cookies=None):
    """A session's server, without TLS if `pem` is empty; its port and the requests that it got."""
    requests = []
    cookies = [] if cookies is None else cookies

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.headers["Authorization"])
            cookies.append(self.headers["Cookie"])
            self.send_response(200)
            self.send_header("Set-Cookie", "mark=1; Domain=carme-session.internal; Path=/")
            self.end_headers()

        def log_message(self, *args):
            pass

    class Server(HTTPServer):
        def handle_error(self, request, client_address):
            """A client that refuses the certificate is what these tests are about."""

    with Server(("127.0.0.1", 0), Handler) as server:
        if pem:
            path = tmp_path / "server.pem"
            path.write_text(pem)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(path)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_port, requests
        finally:
            server.shutdown()
            thread.join()


def ask(certificates, *urls):
    """The status of the last request with a token, by the client that the hub uses."""
    options = {
        "connector_options": certificates.connector_options(),
        "session_options": {"cookie_jar": NoCookies()},
    }

    async def run():
        others = JupyterHubHTTPClient._instance  # of a prediction service in other tests
        client = JupyterHubHTTPClient(config=Config({"JupyterHubHTTPClient": options}))
        JupyterHubHTTPClient._instance = client
        try:
            headers = {"Authorization": "token secret"}
            for url in urls:
                response = await client.fetch(url, headers=headers)
            return response.status
        finally:
            await client.close()
            JupyterHubHTTPClient._instance = others

    return asyncio.run(run())


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "::1", "2001:db8::7"])
def test_the_address_is_in_the_name(address):
    import ipaddress

    name = host_name(address, ANN)
    assert name.endswith(f".{ANN}.carme-session.internal")
    assert ipaddress.ip_address(address_of(name)) == ipaddress.ip_address(address)


@pytest.mark.parametrize(
    "host", ["localhost", "10-0-0-1.example.org", f"{ANN}.carme-session.internal", "gpu-01", ""]
)
def test_other_names_are_no_sessions(host):
    assert address_of(host) is None


def test_the_hub_reaches_a_session(certificates, tmp_path):
    with session(tmp_path, certificates.issue(ANN)) as (port, requests):
        assert ask(certificates, f"https://{host_name('127.0.0.1', ANN)}:{port}/") == 200
    assert requests == ["token secret"]


def test_a_session_sets_no_cookies_for_the_hubs_requests_to_others(certificates, tmp_path):
    cookies = []
    with session(tmp_path, certificates.issue(ANN), cookies) as (port, _):
        url = f"https://{host_name('127.0.0.1', ANN)}:{port}/"
        assert ask(certificates, url, url) == 200
    assert cookies == [None, None]


@pytest.mark.parametrize("kind", ["another session's", "its own authority's", "none"])
def test_no_request_reaches_a_server_without_the_certificate(certificates, tmp_path, kind):
    other = SessionCertificates(tmp_path / "other")
    (tmp_path / "other").mkdir()
    pem = {
        "another session's": lambda: certificates.issue(BEN),
        "its own authority's": lambda: other.issue(ANN),
        "none": lambda: "",
    }[kind]()
    with session(tmp_path, pem) as (port, requests), pytest.raises(aiohttp.ClientConnectorError):
        ask(certificates, f"https://{host_name('127.0.0.1', ANN)}:{port}/")
    assert requests == []


def test_the_authority_vouches_for_no_other_name(certificates, tmp_path):
    """Not even its own key could make the hub trust a server on the Internet."""
    import carme_spawner.session_certificates as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DOMAIN", "localhost")
        pem = certificates.issue(ANN)
    refused = pytest.raises(aiohttp.ClientConnectorError, match="permitted subtree")
    with session(tmp_path, pem) as (port, requests), refused:
        ask(certificates, f"https://x.{ANN}.localhost:{port}/")
    assert requests == []


def test_the_authority_is_kept_and_its_key_is_closed(certificates, tmp_path):
    secret, public = tmp_path / "session-authority.pem", tmp_path / "session-authority.crt"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert public.stat().st_mode & 0o777 == 0o644
    assert "PRIVATE" not in public.read_text()
    before = secret.read_bytes()
    again = SessionCertificates(tmp_path)
    again.publish()
    assert secret.read_bytes() == before
    with session(tmp_path, again.issue(ANN)) as (port, _):
        assert ask(certificates, f"https://{host_name('127.0.0.1', ANN)}:{port}/") == 200


@pytest.mark.parametrize("text", ["", "garbage", "-----BEGIN PRIVATE KEY-----\nAA\n"])
def test_a_damaged_authority_is_told(tmp_path, text):
    (tmp_path / "session-authority.pem").write_text(text)
    with pytest.raises(ConfigError, match=r"session-authority\.pem"):
        SessionCertificates(tmp_path).publish()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_another_user_is_told(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="working folder"):
        SessionCertificates(tmp_path).publish()
