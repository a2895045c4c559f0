"""ONNX files that people send, good and hostile."""

import os
import time
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from carme.errors import BusyError
from carme.service import sandbox_process, uploads
from support.fair_use import waiting
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


def upload(service, data, name="net", dimensions=""):
    return service.client.post(
        f"{API}/workloads/onnx?name={name}&dimensions={dimensions}", data=data,
        headers={"Authorization": "token token-ann", "Content-Type": "application/octet-stream"},
    )  # fmt: skip


def test_a_good_one_is_kept_and_predicted(service):
    answer = upload(service, graph().SerializeToString())
    assert answer.status_code == 201, answer.json
    body = {"workload": "net", "hardware": {"gpus": "1xT4"}}
    assert service.ask("POST", "/predictions", body=body).status_code == 200


def test_open_dimensions_are_asked_for_and_warnings_shown(service):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "tokens", 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    w = helper.make_tensor("w", TensorProto.FLOAT, [64, 10], [0.0] * 640)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]),
             helper.make_node("Swirl", ["h"], ["y"], domain="mine")]  # fmt: skip
    data = helper.make_model(
        helper.make_graph(nodes, "tokens", [x], [y], [w]),
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)],
    ).SerializeToString()
    refused = upload(service, data)
    assert refused.status_code == 422
    assert "open: tokens" in refused.json["detail"]
    for wrong in ("tokens", "tokens=", "tokens=-1", "tokens=0", "tokens=x", "=5", "tokens=1e3"):
        assert upload(service, data, dimensions=wrong).status_code == 422, wrong
    answer = upload(service, data, "tokens", "tokens=128")
    assert answer.status_code == 201, answer.json
    (warning,) = answer.json["workload"]["warnings"]
    assert "Swirl" in warning
    assert "% of the elements moved" in warning
    body = {"workload": "tokens", "hardware": {"gpus": "1xT4"}}
    assert warning in service.ask("POST", "/predictions", body=body).json["prediction"]["notes"]


def test_a_small_file_cannot_take_much_memory_or_time(service):
    """Shapes that double with each operator: 2^40 numbers if they were computed."""
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    nodes += [helper.make_node("Concat", [f"s{i}"] * 2, [f"s{i + 1}"], axis=0) for i in range(40)]
    nodes.append(helper.make_node("ConstantOfShape", ["s40"], ["y"]))
    began = time.monotonic()
    answer = upload(service, graph(nodes).SerializeToString())
    assert answer.status_code == 422
    assert time.monotonic() - began < uploads.SECONDS + 10
    survivors = [each._process[0] for each in service.context.sandboxes._processes if each._process]
    for process in survivors:
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if "VmPeak" in line)
        assert peak * 1024 < uploads.MEMORY_BYTES + 2**30
    assert upload(service, graph().SerializeToString()).status_code == 201


def test_external_data_in_a_function_are_refused(service):
    outside = external().graph.initializer[-1]
    constant = helper.make_node("Constant", [], ["w2"], value=outside)
    opset = helper.make_opsetid("", 20)
    function = helper.make_function(
        "mine", "F", ["a"], ["b"], [constant, helper.make_node("Add", ["a", "w2"], ["b"])], [opset]
    )
    model = graph([helper.make_node("F", ["x"], ["y"], domain="mine")])
    model.functions.append(function)
    answer = upload(service, model.SerializeToString())
    assert answer.status_code == 422
    assert "external" in answer.json["detail"]


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
    sandboxes = service.context.sandboxes
    with sandboxes.process("ben"), sandboxes.process("ada"):  # as while their files are read
        answer = upload(service, graph().SerializeToString())
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert "try again" in answer.json["hint"]


def test_slow_files_of_one_user_delay_no_other(service):
    sandboxes = service.context.sandboxes
    with sandboxes.process("ben"), waiting(sandboxes.gate, "ben"):  # two slow files of one user
        assert upload(service, graph().SerializeToString()).status_code == 201
        with pytest.raises(BusyError, match="2 files in progress"):
            sandboxes.gate.enter("ben")


def test_what_takes_too_long_or_dies_is_ended_and_the_next_one_read(service):
    [sandbox, _] = service.context.sandboxes._processes
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


CONFIG = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
          "vocab_size": 50257}  # fmt: skip


def test_a_hugging_face_configuration_is_a_workload(service):
    body = {"name": "my-gpt2", "config": CONFIG, "sequence": 512, "samples": 5000}
    answer = service.ask("POST", "/workloads/huggingface", body=body)
    assert answer.status_code == 201, answer.json
    workload = answer.json["workload"]
    assert workload["transformer"]["sequence"] == 512
    assert workload["dataset"]["samples"] == 5000
    assert workload["warnings"] == []
    request = {"workload": "my-gpt2", "hardware": {"gpus": "1xA100-80gb"}}
    assert service.ask("POST", "/predictions", body=request).status_code == 200
    for wrong in ({}, {"n_embd": "768"}, {**CONFIG, "n_layer": 10**8}, {**CONFIG, "n_head": 0}):
        body = {"name": "wrong", "config": wrong}
        assert service.ask("POST", "/workloads/huggingface", body=body).status_code == 422, wrong
