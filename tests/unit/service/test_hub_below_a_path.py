"""The service of a hub whose public address has a path."""

import re
import threading
from urllib.parse import parse_qs, urlsplit

import pytest
from werkzeug.serving import make_server

from carme.jobs.models import JobReport
from carme.jobs.service_client import ServiceJobsClient
from support.service import Service

PREFIX = "/jupyter/services/carme"
ANN = {"Authorization": "token token-ann"}


@pytest.fixture(params=["https://example.org/jupyter", "https://example.org/jupyter/"])
def service(request, tmp_path):
    running = Service(tmp_path, hub_url=request.param)
    yield running
    running.close()


def test_api_health_and_static_files_are_below_the_path(service):
    get = service.client.get
    assert get(f"{PREFIX}/api/v1/cluster", headers=ANN).json["name"]
    document = get(f"{PREFIX}/api/v1/openapi.json").json
    assert document["servers"] == [{"url": f"{PREFIX}/api/v1"}]
    assert get(f"{PREFIX}/healthz").status_code == 200
    assert get(f"{PREFIX}/metrics").status_code == 401
    for name in ("static/common.js", "static-web/elements.js"):
        assert get(f"{PREFIX}/{name}", buffered=True).status_code == 200
    for path in ("/services/carme/api/v1/cluster", "/services/carme/plan"):
        assert get(path, headers=ANN).status_code == 404


def test_a_login(service):
    get = service.client.get
    assert get(f"{PREFIX}/", headers=ANN).headers["Location"] == f"{PREFIX}/plan"
    sent = get(f"{PREFIX}/plan")
    address = urlsplit(sent.headers["Location"])
    assert address.geturl().startswith("https://example.org/jupyter/hub/api/oauth2/authorize?")
    query = parse_qs(address.query)
    assert query["redirect_uri"] == [f"https://example.org{PREFIX}/oauth_callback"]
    back = {"base_url": "https://example.org"}  # the cookie is for HTTPS only
    service.client.set_cookie(
        "carme-service-login", f"abc verifier {PREFIX}/explore?x=1", path=PREFIX,
        domain="example.org",
    )  # fmt: skip
    done = get(f"{PREFIX}/oauth_callback?state=abc&code=good", **back)
    assert done.headers["Location"] == f"{PREFIX}/explore?x=1"
    cookies = done.headers.getlist("Set-Cookie")
    assert cookies
    assert all(f"Path={PREFIX}" in cookie for cookie in cookies)
    assert get(f"{PREFIX}/explore", **back).status_code == 200


@pytest.mark.parametrize("name", ["plan", "explore", "jobs", "jobs/1", "cluster", "api"])
def test_every_address_on_a_page_is_below_the_path(service, name):
    page = service.client.get(f"{PREFIX}/{name}", headers=ANN)
    assert page.status_code == 200
    addresses = re.findall(r'(?:href|src|action|content)="(/[^"]*)"', page.text)
    assert f"{PREFIX}/static/common.js" in addresses
    assert "/jupyter/hub/home" in addresses
    assert [address for address in addresses if not address.startswith("/jupyter/")] == []
    assert '"/services/' not in page.text


def test_jobs_at_the_hubs_address(service):
    service.view.reports["5"] = JobReport(id=5, user="ann")
    server = make_server("127.0.0.1", 0, service.app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        for path in ("/jupyter", "/jupyter/", "/jupyter/hub", "/jupyter/hub/"):
            url = f"http://127.0.0.1:{server.server_port}{path}"
            assert ServiceJobsClient(url, "token-ann").report(5).user == "ann"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
