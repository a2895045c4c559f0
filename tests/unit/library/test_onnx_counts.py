"""Parameters and flops of ONNX graphs, against published counts and formulas."""

from pathlib import Path

import pytest

from carme import library
from carme.errors import InputError
from carme.library.onnx import from_model, read_onnx
from carme.simulator.costs.step import plan_step
from carme.simulator.plans import Synchronous

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
FLOAT, INT64, INT8 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.INT8
make = onnx.helper
ZOO = Path(onnx.__file__).parent / "backend/test/data/light"
"""Whole networks in the onnx package; ConstantOfShape makes their weights."""


def weight(name, *shape, kind=FLOAT):
    """A weight without its data: only its shape counts."""
    return onnx.TensorProto(name=name, data_type=kind, dims=shape)


def integers(name, *values):
    return make.make_tensor(name, INT64, [len(values)], values)


def model(nodes, inputs, weights=(), outputs=(("y", None),), functions=(), opsets=(("", 20),)):
    def value(name, shape, kind=FLOAT):
        return make.make_tensor_value_info(name, kind, shape)

    graph = make.make_graph(
        nodes, "net", [value(*i) for i in inputs], [value(*o) for o in outputs], list(weights)
    )
    return make.make_model(
        graph, opset_imports=[make.make_opsetid(*o) for o in opsets], functions=list(functions)
    )


def read(*args, dimensions=None, **fields):
    return from_model(model(*args, **fields), "net", "net.onnx", dimensions)


@pytest.mark.parametrize(
    ("name", "parameters", "gigaflops"),
    [
        ("vgg19", 143_667_240, 2 * 19.63),
        ("resnet50", 25_557_032, 2 * 4.09),
        ("bvlc_alexnet", 60_965_224, 2 * 0.655),  # two groups of filters, as in the paper
        ("squeezenet", 1_235_496, 2 * 0.349),
    ],
)
def test_published_networks_have_their_published_sizes(name, parameters, gigaflops):
    workload = read_onnx(ZOO / f"light_{name}.onnx")
    assert workload.parameter_count == parameters
    assert workload.forward_flops == pytest.approx(gigaflops * 1e9, rel=0.003)
    assert workload.warnings == ()


def test_the_all_reduce_of_vgg_is_that_of_all_its_parameters():
    plan = Synchronous(gpus=8, batch=64)
    step = plan_step(read_onnx(ZOO / "light_vgg19.onnx"), library.cluster_of("8xV100"), plan)
    assert step.gradient_bytes == 4 * 143_667_240


def bert(sequence):
    """BERT-base with its pooler, in the operators of PyTorch's export."""
    h, heads, vocabulary = 768, 12, 30522
    nodes, weights = [], []

    def node(kind, *inputs, **attributes):
        output = f"t{len(nodes)}"
        nodes.append(make.make_node(kind, list(inputs), [output], **attributes))
        return output

    def parameter(*shape):
        weights.append(weight(f"w{len(weights)}", *shape))
        return weights[-1].name

    def dense(x, inputs, outputs):
        return node("Add", parameter(outputs), node("MatMul", x, parameter(inputs, outputs)))

    def norm(x):
        return node("LayerNormalization", x, parameter(h), parameter(h))

    weights += [integers("split", 1, sequence, heads, h // heads), integers("join", 1, sequence, h)]
    weights.append(make.make_tensor("eight", FLOAT, [], [8.0]))
    weights.append(integers("positions", *range(sequence)))
    embedding = node("Gather", parameter(vocabulary, h), "ids")
    embedding = node("Add", embedding, node("Gather", parameter(2, h), "types"))
    embedding = node("Add", embedding, node("Gather", parameter(512, h), "positions"))
    x = norm(embedding)
    for _ in range(12):
        q, k, v = (
            node("Transpose", node("Reshape", dense(x, h, h), "split"), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = node("Softmax", node("Div", node("MatMul", q, k), "eight"))
        context = node("Transpose", node("MatMul", scores, v), perm=[0, 2, 1, 3])
        x = norm(node("Add", x, dense(node("Reshape", context, "join"), h, h)))
        x = norm(node("Add", x, dense(node("Gelu", dense(x, h, 4 * h)), 4 * h, h)))
    first = node("Gather", x, parameter_index(weights), axis=1)
    nodes.append(make.make_node("Identity", [node("Tanh", dense(first, h, h))], ["y"]))
    inputs = [("ids", ["batch", sequence], INT64), ("types", ["batch", sequence], INT64)]
    return model(nodes, inputs, weights)


def parameter_index(weights):
    weights.append(make.make_tensor("first", INT64, [], [0]))
    return "first"


def test_bert_base_has_its_published_parameters_and_flops():
    s, h = 128, 768
    workload = from_model(bert(s), "bert", "bert.onnx")
    assert workload.parameter_count == 109_482_240
    assert workload.forward_flops == 12 * (24 * s * h * h + 4 * s * s * h) + 2 * h * h
    assert workload.warnings == ()


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrences_have_their_gates(kind, gates, directions):
    steps, inputs, h, d = 35, 16, 32, directions
    node = make.make_node(
        kind, ["x", "w", "r", "b"], ["y"], hidden_size=h,
        direction="bidirectional" if d == 2 else "forward",
    )  # fmt: skip
    weights = [weight("w", d, gates * h, inputs), weight("r", d, gates * h, h)]
    workload = read(
        [node], [("x", [steps, "N", inputs])], [*weights, weight("b", d, 2 * gates * h)]
    )
    assert workload.forward_flops == 2 * d * steps * gates * h * (inputs + h)
    assert workload.parameter_count == d * gates * h * (inputs + h + 2)


def linear(*extra, source="w", inputs=(("x", ["N", 8]),), output="y", weights=()):
    return [[*extra, make.make_node("MatMul", ["x", source], [output])], inputs, weights]


@pytest.mark.parametrize(
    "source", ["Constant", "ConstantOfShape", "Cast", "Transpose", "dequantized"]
)
def test_weights_count_wherever_they_come_from(source):
    weights = []
    match source:
        case "Constant":
            node = make.make_node("Constant", [], ["w"], value=weight("", 8, 4))
        case "ConstantOfShape":
            node = make.make_node("ConstantOfShape", ["shape"], ["w"])
            weights = [integers("shape", 8, 4)]
        case "Cast":
            node = make.make_node("Cast", ["half"], ["w"], to=FLOAT)
            weights = [weight("half", 8, 4, kind=onnx.TensorProto.FLOAT16)]
        case "Transpose":
            node = make.make_node("Transpose", ["turned"], ["w"], perm=[1, 0])
            weights = [weight("turned", 4, 8)]
        case _:
            node = make.make_node("DequantizeLinear", ["small", "scale"], ["w"])
            weights = [weight("small", 8, 4, kind=INT8), make.make_tensor("scale", FLOAT, [], [1])]
    workload = read(*linear(node, weights=weights))
    assert (workload.parameter_count, workload.forward_flops) == (32, 64)


def test_weights_on_the_left_count():
    nodes = [make.make_node("MatMul", ["w", "x"], ["y"])]
    workload = read(nodes, [("x", ["N", 8, 5])], [weight("w", 4, 8)])
    assert (workload.parameter_count, workload.forward_flops) == (32, 2 * 4 * 8 * 5)


def test_a_weight_used_twice_counts_once():
    nodes = [
        make.make_node("Gather", ["table", "ids"], ["e"]),
        make.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        make.make_node("MatMul", ["e", "turned"], ["y"]),
    ]
    workload = read(nodes, [("ids", ["N", 20], INT64)], [weight("table", 100, 8)])
    assert workload.parameter_count == 800
    assert workload.forward_flops == 2 * 20 * 100 * 8


def test_running_means_settings_and_shapes_are_no_parameters():
    nodes = [
        make.make_node("BatchNormalization", ["x", "s", "b", "mean", "var"], ["n"]),
        make.make_node("Resize", ["n", "", "scales"], ["r"]),
        make.make_node("Reshape", ["r", "shape"], ["y"]),
    ]
    weights = [weight(name, 3) for name in ("s", "b", "mean", "var")]
    weights += [make.make_tensor("scales", FLOAT, [4], [1, 1, 2, 2]), integers("shape", 0, -1)]
    assert read(nodes, [("x", ["N", 3, 8, 8])], weights).parameter_count == 6


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("bhqd,bhkd->bhqk", [(1, 4, 10, 16), (1, 4, 12, 16)], 2 * 4 * 10 * 12 * 16),
        ("...ij,...jk->...ik", [(1, 3, 5, 6), (1, 3, 6, 7)], 2 * 3 * 5 * 6 * 7),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)], 2 * 2 * 3 * 4 + 2 * 2 * 4 * 5),
        ("ij,jk", [(2, 3), (3, 4)], 2 * 2 * 3 * 4),
        ("bij->bji", [(1, 4, 5)], 0),
    ],
)
def test_einsum(equation, shapes, flops):
    names = [f"x{i}" for i in range(len(shapes))]
    node = make.make_node("Einsum", names, ["y"], equation=equation)
    workload = read([node], [(n, list(s)) for n, s in zip(names, shapes, strict=True)])
    assert workload.forward_flops == flops


def test_einsum_with_weights_of_experts():
    node = make.make_node("Einsum", ["x", "w"], ["y"], equation="bsd,edf->bsef")
    workload = read([node], [("x", ["batch", 6, 8])], [weight("w", 4, 8, 16)])
    assert workload.parameter_count == 4 * 8 * 16
    assert workload.forward_flops == 2 * 6 * 4 * 8 * 16


def test_attention_of_onnx_and_of_onnx_runtime():
    heads, s, width = 4, 20, 8
    sizes = ["N", s, heads * width]
    node = make.make_node("Attention", ["q", "k", "v"], ["y"], q_num_heads=4, kv_num_heads=4)
    workload = read([node], [(n, sizes) for n in "qkv"], opsets=(("", 23),))
    assert workload.forward_flops == 2 * 2 * heads * s * s * width

    nodes = [
        make.make_node("Attention", ["x", "w", "b"], ["a"], domain="com.microsoft", num_heads=4),
        make.make_node("MatMul", ["a", "w2"], ["y"]),
    ]
    h = heads * width
    weights = [weight("w", h, 3 * h), weight("b", 3 * h), weight("w2", h, 10)]
    workload = read(nodes, [("x", sizes)], weights, opsets=(("", 20), ("com.microsoft", 1)))
    assert workload.forward_flops == 2 * s * h * 3 * h + 4 * s * s * h + 2 * s * h * 10
    assert workload.parameter_count == 3 * h * h + 3 * h + 10 * h
    assert workload.warnings == ()


def test_quantized_convolutions_cost_what_others_do():
    scale = [make.make_tensor(n, FLOAT, [], [1]) for n in ("xs", "ws", "ys")]
    zero = [make.make_tensor(n, INT8, [], [0]) for n in ("xz", "wz", "yz")]
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    node = make.make_node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1])
    bias = weight("b", 16, kind=onnx.TensorProto.INT32)
    workload = read(
        [node],
        [("x", ["N", 3, 32, 32], INT8)],
        [*scale, *zero, weight("w", 16, 3, 3, 3, kind=INT8), bias],
        outputs=[("y", None, INT8)],
    )
    assert workload.forward_flops == 2 * 32 * 32 * 16 * 27
    assert workload.parameter_count == 16 * 27


def body(*nodes, inputs=(), outputs=("out",), weights=()):
    values = [make.make_tensor_value_info(n, kind, shape) for n, kind, shape in inputs]
    results = [make.make_tensor_value_info(o, FLOAT, None) for o in outputs]
    return make.make_graph(nodes, "body", values, results, list(weights))


def branch(columns):
    node = make.make_node("MatMul", ["x", f"w{columns}"], ["out"])
    return body(node, weights=[weight(f"w{columns}", 8, columns)])


def test_the_costlier_branch_counts_and_the_weights_of_both():
    node = make.make_node("If", ["c"], ["y"], then_branch=branch(4), else_branch=branch(100))
    workload = read([node], [("x", ["N", 8]), ("c", [], onnx.TensorProto.BOOL)])
    assert workload.forward_flops == 2 * 8 * 100
    assert workload.parameter_count == 8 * 104
    assert "costlier branch" in workload.warnings[0]
    assert "100 % of the flops" in workload.warnings[0]


def loop(trips):
    step = body(
        make.make_node("Identity", ["c"], ["c2"]),
        make.make_node("MatMul", ["s", "w"], ["out"]),
        inputs=[("i", INT64, []), ("c", onnx.TensorProto.BOOL, []), ("s", FLOAT, [1, 8])],
        outputs=["c2", "out"],
    )
    return [make.make_node("Loop", [trips, "", "x"], ["y"], body=step)]


def test_a_loop_runs_as_often_as_it_says():
    weights = [weight("w", 8, 8), make.make_tensor("n", INT64, [], [50])]
    workload = read(loop("n"), [("x", ["N", 8])], weights)
    assert workload.forward_flops == 50 * 2 * 8 * 8
    assert workload.parameter_count == 64
    assert workload.warnings == ()

    workload = read(loop("n"), [("x", ["N", 8]), ("n", [], INT64)], [weight("w", 8, 8)])
    assert workload.forward_flops == 2 * 8 * 8
    assert "iterations are unknown" in workload.warnings[0]


def test_a_scan_runs_along_its_input():
    step = body(
        make.make_node("MatMul", ["s", "w"], ["out"]),
        make.make_node("Add", ["out", "e"], ["e2"]),
        inputs=[("s", FLOAT, [1, 8]), ("e", FLOAT, [1, 8])],
        outputs=["out", "e2"],
    )
    node = make.make_node("Scan", ["start", "x"], ["y", "all"], body=step, num_scan_inputs=1)
    inputs = [("start", ["N", 8]), ("x", [30, "N", 8])]
    assert read([node], inputs, [weight("w", 8, 8)]).forward_flops == 30 * 2 * 8 * 8


def function(name, *calls, domain="mine"):
    nodes = [make.make_node(c, ["a" if i == 0 else f"t{i}"], [f"t{i + 1}"], domain=d)
             for i, (c, d) in enumerate(calls)]  # fmt: skip
    opsets = [make.make_opsetid("", 20), make.make_opsetid("mine", 1)]
    return make.make_function(domain, name, ["a"], [f"t{len(calls)}"], nodes, opsets)


def test_local_functions_are_counted():
    inner = make.make_function(
        "mine", "Layer", ["a", "w"], ["b"], [make.make_node("MatMul", ["a", "w"], ["b"])],
        [make.make_opsetid("", 20)],
    )  # fmt: skip
    nodes = [make.make_node("Layer", ["x", "w"], ["h"], domain="mine"),
             make.make_node("Layer", ["h", "w"], ["y"], domain="mine")]  # fmt: skip
    workload = read(nodes, [("x", ["N", 8])], [weight("w", 8, 8)], functions=[inner],
                    opsets=(("", 20), ("mine", 1)))  # fmt: skip
    assert workload.forward_flops == 2 * 2 * 8 * 8
    assert workload.parameter_count == 64


def test_exponential_and_recursive_functions_are_refused():
    doubling = [function("F0", ("Relu", ""), ("Relu", ""))]
    doubling += [function(f"F{i}", *[(f"F{i - 1}", "mine")] * 10) for i in range(1, 9)]
    top = [make.make_node("F8", ["x"], ["y"], domain="mine")]
    fields = {"inputs": [("x", ["N", 8])], "opsets": (("", 20), ("mine", 1))}
    with pytest.raises(InputError, match="operators"):
        read(top, functions=doubling, **fields)
    itself = function("F8", ("F8", "mine"))
    with pytest.raises(InputError, match="call each other"):
        read(top, functions=[itself], **fields)


def test_nested_loops_stay_bounded():
    nested = loop("n")
    for _ in range(19):
        step = body(
            make.make_node("Identity", ["c"], ["c2"]), *nested,
            inputs=[("i", INT64, []), ("c", onnx.TensorProto.BOOL, []), ("x", FLOAT, [1, 8])],
            outputs=["c2", "y"],
        )  # fmt: skip
        nested = [make.make_node("Loop", ["n", "", "x"], ["y"], body=step)]
    weights = [weight("w", 8, 8), make.make_tensor("n", INT64, [], [3])]
    with pytest.raises(InputError, match="loops in loops"):
        read(nested, [("x", ["N", 8])], weights)


def test_open_dimensions_are_refused_until_they_have_a_size():
    nodes = [make.make_node("MatMul", ["x", "w"], ["y"])]
    inputs, weights = [("x", ["N", "tokens", 8])], [weight("w", 8, 4)]
    with pytest.raises(InputError, match="open: tokens") as refused:
        read(nodes, inputs, weights)
    assert "--dimension" in refused.value.hint
    workload = read(nodes, inputs, weights, dimensions={"tokens": 128})
    assert workload.forward_flops == 128 * 2 * 8 * 4
    with pytest.raises(InputError, match="no dimension token"):
        read(nodes, inputs, weights, dimensions={"token": 128})


def test_a_fixed_batch_is_divided_and_named():
    nodes = [make.make_node("MatMul", ["x", "w"], ["h"]), make.make_node("Relu", ["h"], ["y"])]
    one = read(nodes, [("x", [1, 8])], [weight("w", 8, 4)], outputs=[("y", [1, 4])])
    many = read(nodes, [("x", [32, 8])], [weight("w", 8, 4)], outputs=[("y", [32, 4])])
    assert many.forward_flops == one.forward_flops == 64
    assert many.layers == one.layers
    assert many.dataset == one.dataset
    assert one.warnings == ()
    assert "fixed batch of 32" in many.warnings[0]

    nodes.append(make.make_node("ReduceSum", ["h", "axes"], ["z"], keepdims=0))
    whole = read(
        nodes, [("x", [32, 8])], [weight("w", 8, 4), integers("axes", 0)], outputs=[("z", [4])]
    )
    assert whole.forward_flops == 32 * 64
    assert "part of one sample" in whole.warnings[0]


def test_inputs_that_all_samples_share_do_not_hide_the_fixed_batch():
    nodes = [make.make_node("MatMul", ["x", "w"], ["h"]), make.make_node("Add", ["h", "m"], ["y"])]
    shared = read(
        nodes, [("x", [32, 8]), ("m", [1, 4])], [weight("w", 8, 4)], outputs=[("y", [32, 4])]
    )
    assert shared.forward_flops == 64
    assert "fixed batch of 32" in shared.warnings[0]
    mixed = read(
        nodes, [("x", [32, 8]), ("m", [2, 4])], [weight("w", 8, 4)], outputs=[("y", [32, 4])]
    )
    assert mixed.forward_flops == 32 * 64
    assert "first dimensions differ (2, 32)" in mixed.warnings[0]


def test_a_convolution_with_gaps_is_known():
    nodes = [make.make_node("Conv", ["x", "w"], ["y"], dilations=[2, 2], pads=[2, 2, 2, 2])]
    workload = read(nodes, [("x", [1, 8, 16, 16])], [weight("w", 8, 8, 3, 3)])
    assert workload.layers[0].dilated


def test_a_product_of_unknown_size_is_refused():
    nodes = [
        make.make_node("NonZero", ["x"], ["places"]),
        make.make_node("Cast", ["places"], ["p"], to=FLOAT),
        make.make_node("MatMul", ["p", "w"], ["y"]),
    ]
    with pytest.raises(InputError, match="shape of 'p' is unknown"):
        read(nodes, [("x", ["N", 8])], [weight("w", 8, 4)])


def test_the_depth_of_a_product_must_fit():
    nodes = [make.make_node("Strange", ["x"], ["h"], domain="mine"),
             make.make_node("MatMul", ["h", "w"], ["y"])]  # fmt: skip
    opsets = (("", 20), ("mine", 1))
    fields = {"weights": [weight("w", 8, 4)], "opsets": opsets}
    assert read(nodes, [("x", ["N", 8])], **fields).forward_flops == 64
    with pytest.raises(InputError, match="do not fit together"):
        read(nodes, [("x", ["N", 9])], **fields)


def test_unknown_operators_are_named_with_their_share():
    nodes = [
        make.make_node("MatMul", ["x", "w"], ["h"]),
        make.make_node("Swirl", ["h", "v"], ["y"], domain="mine"),
    ]
    weights = [weight("w", 8, 4), weight("v", 4, 24)]
    workload = read(nodes, [("x", ["N", 8])], weights, opsets=(("", 20), ("mine", 1)))
    assert workload.unknown_operators == ("Swirl",)
    (warning,) = workload.warnings
    assert "Swirl" in warning
    assert "75 % of the parameters" in warning
    assert "0 % of the flops" in warning
