"""ONNX files that people send, good and hostile."""

import onnx
import pytest
from onnx import TensorProto, helper

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


@pytest.mark.parametrize("name", ["../x", "a/b", "%2e%2e", "A" * 80])
def test_a_name_is_a_name(service, name):
    assert upload(service, graph().SerializeToString(), name).status_code in (404, 422)
