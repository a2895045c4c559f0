import pytest

from support.service import Service


@pytest.fixture
def service(tmp_path):
    running = Service(tmp_path)
    yield running
    running.close()
