"""ONNX files: what their operators cost, and which files are refused."""

import numpy as np
import pytest

from carme import library
from carme.errors import InputError, MissingError
from carme.library.onnx import read_onnx
from carme.simulator.plans import Synchronous
from carme.simulator.runs import simulate

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
FLOAT = onnx.TensorProto.FLOAT
make = onnx.helper


def weight(name, *shape):
    return make.make_tensor(name, FLOAT, shape, np.zeros(shape, np.float32).tobytes(), raw=True)


def save(path, nodes, inputs, output, weights, opsets=(("", 17),)):
    graph = make.make_graph(
        nodes,
        "net",
        [make.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [make.make_tensor_value_info(output, FLOAT, None)],
        weights,
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid(*o) for o in opsets])
    path.write_bytes(model.SerializeToString())
    return path


def small(path, extra=()):
    nodes = [
        make.make_node("Conv", ["x", "w1", "b1"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        make.make_node("Relu", ["a"], ["b"]),
        make.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        make.make_node("Flatten", ["c"], ["d"]),
        make.make_node("Gemm", ["d", "w2"], ["y"], name="fc", transB=1),
        *extra,
    ]
    weights = [weight("w1", 16, 3, 3, 3), weight("b1", 16), weight("w2", 10, 4096)]
    output = extra[-1].output[0] if extra else "y"
    opsets = (("", 17), ("my.own", 1))
    return save(path, nodes, {"x": ["N", 3, 32, 32]}, output, weights, opsets)


def test_convolutions_and_products_cost_what_they_should(tmp_path):
    workload = read_onnx(small(tmp_path / "small.onnx"))
    assert workload.forward_flops == 2 * (32 * 32 * 16 * 27 + 10 * 4096)
    assert workload.parameter_count == 16 * 27 + 16 + 40960
    assert workload.unknown_operators == ()
    assert workload.dataset.input_elements == 3 * 32 * 32
    result = simulate(workload, library.cluster_of("2xV100"), Synchronous(gpus=2, batch=64))
    assert result.seconds > 0


def test_unknown_operators_are_estimated_and_named(tmp_path):
    extra = [make.make_node("Swirl", ["y"], ["z"], domain="my.own")]
    workload = read_onnx(small(tmp_path / "odd.onnx", extra))
    assert workload.unknown_operators == ("Swirl",)
    assert workload.costs[-1].inputs == 10


def test_attention_embeddings_and_recurrences(tmp_path):
    nodes = [
        make.make_node("Gather", ["table", "ids"], ["e"]),
        make.make_node("MatMul", ["e", "wq"], ["q"]),
        make.make_node("Transpose", ["q"], ["qt"], perm=[0, 2, 1]),
        make.make_node("MatMul", ["q", "qt"], ["scores"]),
        make.make_node("Softmax", ["scores"], ["p"]),
        make.make_node("MatMul", ["p", "q"], ["out"]),
    ]
    graph = make.make_graph(
        nodes,
        "attention",
        [make.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["N", 20])],
        [make.make_tensor_value_info("out", FLOAT, None)],
        [weight("table", 1000, 64), weight("wq", 64, 64)],
    )
    path = tmp_path / "attention.onnx"
    path.write_bytes(make.make_model(graph).SerializeToString())
    workload = read_onnx(path)
    assert workload.forward_flops == 2 * (20 * 64 * 64 + 2 * 20 * 20 * 64)
    assert workload.parameter_count == 64000 + 64 * 64

    lstm = make.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=32)
    path = save(
        tmp_path / "lstm.onnx",
        [lstm],
        {"x": [35, 1, 16]},
        "y",
        [weight("w", 1, 128, 16), weight("r", 1, 128, 32)],
    )
    assert read_onnx(path).forward_flops == 35 * 2 * 128 * 48


def test_a_cycle_is_refused(tmp_path):
    nodes = [
        make.make_node("Add", ["x", "b"], ["a"], name="first"),
        make.make_node("Relu", ["a"], ["b"], name="second"),
    ]
    with pytest.raises(InputError, match="cycle through 'first'"):
        read_onnx(save(tmp_path / "cycle.onnx", nodes, {"x": [1, 4]}, "b", []))


def test_truncated_empty_missing_and_foreign_files_are_refused(tmp_path):
    whole = small(tmp_path / "whole.onnx").read_bytes()
    for name, content in {"cut": whole[: len(whole) // 2], "text": b"hello", "empty": b""}.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(content)
        with pytest.raises(InputError):
            read_onnx(path)
    with pytest.raises(MissingError):
        read_onnx(tmp_path / "nothing.onnx")


def test_external_data_are_never_opened(tmp_path):
    tensor = onnx.TensorProto(name="w", data_type=FLOAT, dims=[8, 4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "/etc/shadow"
    node = make.make_node("MatMul", ["x", "w"], ["y"])
    path = save(tmp_path / "outside.onnx", [node], {"x": [1, 8]}, "y", [tensor])
    assert read_onnx(path).forward_flops == 2 * 8 * 4
