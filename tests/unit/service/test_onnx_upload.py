"""ONNX files that people send, good and hostile."""

import os
import time
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from carme.service import sandbox_process
from support.service import API, Service


def graph(nodes=None, weights=()):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])
    w = helper.make_tensor("w", TensorProto.FLOAT, [64, 10], [0.0] * 640)
    nodes = nodes or [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return helper.make_model(helper.make_graph(nodes, "small", [x], [y], [w, *weights]))


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = Service(tmp_path_factory.mktemp("onnx"))
    yield running
    running.close()


def upload(service, data, name="net"):
    return service.client.post(
        f"{API}/workloads/onnx?name={name}", data=data,
        headers={"Authorization": "token token-ann", "Content-Type": "application/octet-stream"},
    )  # fmt: skip


def test_a_good_one_is_kept_and_predicted(service):
    answer = upload(service, graph().SerializeToString())
    assert answer.status_code == 201, answer.json
    body = {"workload": "net", "hardware": {"gpus": "1xT4"}}
    assert service.ask("POST", "/predictions", body=body).status_code == 200


def cyclic():
    return graph([helper.make_node("Add", ["x", "b"], ["a"]),
                  helper.make_node("Add", ["a", "a"], ["b"])])  # fmt: skip


def external():
    outside = onnx.TensorProto(name="e", data_type=TensorProto.FLOAT, dims=[8])
    outside.data_location = TensorProto.EXTERNAL
    entry = outside.external_data.add()
    entry.key, entry.value = "location", "../../../../etc/passwd"
    return graph(weights=[outside])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"\x00" * 100, "ONNX"),
        (b"not onnx at all", "ONNX"),
        (graph().SerializeToString()[:-700], ""),
        (cyclic().SerializeToString(), "cycle"),
    ],
    ids=["empty", "zeros", "text", "truncated", "cyclic"],
)
def test_a_broken_one_is_refused(service, data, says):
    answer = upload(service, data)
    assert answer.status_code == 422
    assert says in answer.json["detail"]
    assert "/tmp" not in answer.json["detail"]


def test_external_data_is_refused(service):
    answer = upload(service, external().SerializeToString())
    assert answer.status_code == 422
    assert "external" in answer.json["detail"]


def test_a_huge_one_is_refused(tmp_path):
    service = Service(tmp_path, most_onnx_bytes=100_000)
    try:
        assert upload(service, b"x" * 200_000).status_code == 413
    finally:
        service.close()


def test_two_at_a_time_are_told_to_come_again(service, monkeypatch):
    monkeypatch.setattr(sandbox_process, "TIMEOUT_SECONDS", 0.1)
    with service.context.sandbox._lock:  # as while another one is read
        answer = upload(service, graph().SerializeToString())
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert "try again" in answer.json["hint"]


def test_what_takes_too_long_or_dies_is_ended_and_the_next_one_read(service):
    sandbox = service.context.sandbox
    first = sandbox.call(os.getpid, seconds=60)
    with pytest.raises(TimeoutError):
        sandbox.call(time.sleep, 600, seconds=1)
    second = sandbox.call(os.getpid, seconds=60)
    assert second != first
    assert not Path(f"/proc/{first}").exists()
    with pytest.raises((EOFError, OSError)):
        sandbox.call(os._exit, 1, seconds=60)
    assert upload(service, graph().SerializeToString()).status_code == 201


@pytest.mark.parametrize("name", ["../x", "a/b", "%2e%2e", "A" * 80])
def test_a_name_is_a_name(service, name):
    assert upload(service, graph().SerializeToString(), name).status_code in (404, 422)
