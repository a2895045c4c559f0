"""The script that hub and service share is served by the service, too."""

import pytest

from support.service import Service


@pytest.fixture
def service(tmp_path):
    running = Service(tmp_path)
    yield running
    running.close()


def test_the_service_serves_the_shared_script(service):
    answer = service.client.get("/services/carme/static-web/elements.js", buffered=True)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/javascript")
    assert "carmeElements" in answer.text
    for path in ("../__init__.py", "none.js", "..%2f__init__.py"):
        assert service.client.get(f"/services/carme/static-web/{path}").status_code == 404
