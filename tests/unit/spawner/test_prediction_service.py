"""What the hub asks the prediction service, against the service itself."""

import asyncio
import threading

import pytest
from werkzeug.serving import make_server

from carme.requests.resource_request import AdviceRequest
from carme.slurm.models import Job
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
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    settings = running.config.service.model_copy(update={"port": server.server_port})
    running.config = running.config.model_copy(update={"service": settings})
    yield running
    server.shutdown()
    thread.join()
    server.server_close()
    running.close()


GPU_REQUEST = SessionOptions(
    partition="gpu", gpu_type="virtual-a100", hours=8, image="base", workload="resnet-50", epochs=1,
)  # fmt: skip


@pytest.mark.parametrize(
    "resources",
    [
        {"nodes": 2, "gpus": 4, "cpus": 1, "memory_gb": 1},
        {"nodes": 1, "gpus": 1, "cpus": 8, "memory_gb": 1},  # all cores of a node
    ],
)
def test_the_form_and_the_job_have_the_same_prediction(service, resources):
    request = GPU_REQUEST.model_copy(update=resources)
    client = PredictionService(service.config, OWN)
    assert asyncio.run(client.keep_prediction("ann", request, 7)) is None, "no such job"
    service.view.jobs["7"] = Job(id=7, user="ann")
    stored = asyncio.run(client.keep_prediction("ann", request, 7))
    body = request.model_dump(include=set(AdviceRequest.model_fields), exclude_none=True)
    advice = asyncio.run(client.post("ann", "advice", body, 10))["prediction"]
    assert stored["job_id"] == 7
    assert (advice["gpus"], advice["nodes"]) == (
        resources["nodes"] * resources["gpus"],
        resources["nodes"],
    )
    assert stored["prediction"] == advice


def test_a_request_without_gpus_in_a_gpu_partition_has_no_prediction(service):
    request = GPU_REQUEST.model_copy(update={"gpus": 0, "gpu_type": ""})
    client = PredictionService(service.config, OWN)
    body = request.model_dump(include=set(AdviceRequest.model_fields), exclude_none=True)
    advice = asyncio.run(client.post("ann", "advice", body, 10))
    assert (advice["prediction"], len(advice["notes"])) == (None, 1)
    assert asyncio.run(client.keep_prediction("ann", request, 7)) is None
