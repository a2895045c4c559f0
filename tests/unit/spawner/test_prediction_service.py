"""What the hub asks the prediction service, against the service itself."""

import asyncio
import threading

import pytest
from werkzeug.serving import make_server

from carme.requests.resource_request import AdviceRequest
from carme_spawner.options import SessionOptions
from carme_spawner.prediction_service import PredictionService
from support.service import OWN, Service, gpu_nodes


@pytest.fixture
def service(tmp_path):
    """The service on a port, with two nodes of four GPUs; the hub knows its token."""
    running = Service(tmp_path)
    nodes = gpu_nodes("virtual-a100", "virtual-a100")
    running.view.snapshot = running.view.snapshot.model_copy(update={"nodes": nodes})
    server = make_server("127.0.0.1", 0, running.app)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    settings = running.config.service.model_copy(update={"port": server.server_port})
    running.config = running.config.model_copy(update={"service": settings})
    yield running
    server.shutdown()
    thread.join()
    server.server_close()
    running.close()


def test_the_form_and_the_job_have_the_same_prediction(service):
    choice = SessionOptions(
        partition="gpu", nodes=2, gpus=4, gpu_type="virtual-a100", cpus=1, memory_gb=1, hours=8,
        image="base", workload="resnet-50", epochs=1,
    )  # fmt: skip
    client = PredictionService(service.config, OWN)
    stored = asyncio.run(client.keep_prediction("ann", choice, 7))
    body = choice.model_dump(include=set(AdviceRequest.model_fields), exclude_none=True)
    advice = asyncio.run(client.post("ann", "advice", body, 10))["prediction"]
    assert stored["job_id"] == 7
    assert (advice["gpus"], advice["nodes"]) == (8, 2)
    for name in ("gpus", "nodes", "time", "node_energy"):
        assert stored["prediction"][name] == advice[name]
