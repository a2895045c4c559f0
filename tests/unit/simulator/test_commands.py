"""The commands as a user runs them: right input, wrong input, files they write."""

import json

import pytest
from click.testing import CliRunner

from carme.errors import CarmeError, InputError
from carme.library import commands
from carme.simulator.commands import cluster, pareto, simulate, validate

AVERAGING = ("kaldi-lstm", "--gpus", "4xtitan-x", "--plan", "averaging")


def invoke(command, *words):
    return CliRunner().invoke(command, list(words))


def refused(command, *words):
    """The one message of a refused call."""
    result = invoke(command, *words)
    assert result.exit_code != 0, result.output
    if isinstance(result.exception, CarmeError):
        return str(result.exception)
    assert isinstance(result.exception, SystemExit), result.exception
    return result.output


def test_simulate_prints_time_energy_phases_and_limit():
    result = invoke(simulate.simulate, "resnet-50", "--gpus", "8xV100")
    assert result.exit_code == 0
    for word in ("GPU energy", "charged energy", "compute", "limit", "next: skinny products"):
        assert word in result.output


def test_simulate_json_has_units_in_its_names():
    result = invoke(
        simulate.simulate,
        "resnet-50",
        "--gpus",
        "8xV100",
        "--jitter",
        "0.1",
        "--replicas",
        "5",
        "--json",
    )
    document = json.loads(result.output)
    assert document["gpus"] == 8
    assert {"gpu_joules", "node_joules", "seconds", "grams_co2", "limit"} <= document.keys()
    assert document["replicas"]["seconds"]["0.05"] <= document["replicas"]["seconds"]["0.95"]


def test_jitter_comes_from_a_file(tmp_path):
    path = tmp_path / "times.txt"
    path.write_text("1.0\n1.1\n0.9\n2.5\n")
    words = ("resnet-50", "--gpus", "8xV100", "--json")
    plain, jittered = (
        json.loads(invoke(simulate.simulate, *words, *more).stdout)
        for more in ((), ("--jitter-file", str(path)))
    )
    assert jittered["seconds"] > 1.2 * plain["seconds"]
    curve = jittered["power_curve"]
    assert curve[0]["from_seconds"] == 0
    assert all(0 < point["gpu_watts"] < point["node_watts"] for point in curve)
    path.write_text("1.0\nlots\n")
    assert "one number a line" in refused(simulate.simulate, *words, "--jitter-file", str(path))


@pytest.mark.parametrize(
    "words",
    [
        "gpt-13b --gpus 64xA100-80gb --tensor 8 --pipeline 2 --micro-batch 1",
        "resnet-50 --gpus 16xV100 --plan parameter-server --servers 2 --batch 32",
        "cnn-a --gpus 64xK80 --plan asynchronous --gradient-seconds 0.711",
        "kaldi-lstm --cluster merpsys --plan averaging --imbalance 0.06",
        "nt3 --cluster summit --gpus 48 --data whole",
    ],
)
def test_every_plan_from_the_command_line(words):
    result = invoke(simulate.simulate, *words.split())
    assert result.exit_code == 0, result.output
    assert "GPU energy" in result.output


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        (("resnet-5", "--gpus", "8xV100"), "resnet-50"),
        (("resnet-50", "--gpus", "8xV200"), "v100"),
        (("resnet-50", "--gpus", "0xV100"), "a number and a GPU"),
        (("resnet-50",), "--gpus 8xV100 or --cluster"),
        (("resnet-50", "--gpus", "8xV100", "--batch", "0"), "greater than or equal to 1"),
        (("resnet-50", "--gpus", "8xV100", "--batch", "-3"), "greater than or equal to 1"),
        (("resnet-50", "--gpus", "8xV100", "--epochs", "nan"), "epochs"),
        (("resnet-50", "--gpus", "8xV100", "--epochs", "inf"), "epochs"),
        (("resnet-50", "--gpus", "8xV100", "--jitter", "-1"), "jitter"),
        (("resnet-50", "--gpus", "8xV100", "--power-cap", "10"), "150 to 300 W"),
        (("resnet-50", "--gpus", "8xV100", "--precision", "fp4"), "fp16"),
        (("resnet-50", "--gpus", "6xV100", "--pipeline", "4"), "multiple of 4"),
        (("resnet-50", "--gpus", "8xV100", "--servers", "2"), "has no servers"),
        (("resnet-50", "--gpus", "8xV100", "--node", "dgx-a100"), "has a100-80gb, not v100"),
        (("resnet-50", "--gpus", "8xV100", "--network", "string"), "ethernet-1"),
        (("none.onnx", "--gpus", "1xV100"), "no such file"),
        ((*AVERAGING, "--packages", "2"), "packages"),
        ((*AVERAGING, "--first-slaves", "9"), "above gpus"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_clear_message(arguments, expected_text):
    message = refused(simulate.simulate, *arguments)
    assert expected_text in message
    assert "Traceback" not in message


def test_pareto_prints_a_front_and_writes_a_page(tmp_path):
    page, store = tmp_path / "front.html", tmp_path / "points.jsonl"
    words = (
        "resnet-50",
        "--gpus",
        "8xV100",
        "--vary",
        "gpus=2,4,8",
        "--vary",
        "power_cap=150:300:50",
    )
    result = invoke(pareto.pareto, *words, "--html", str(page), "--store", str(store))
    assert result.exit_code == 0, result.output
    assert "12 points" in result.output
    text = page.read_text()
    assert "power_cap_watts = 200" in text
    assert "<script src=" not in text
    assert len(store.read_text().splitlines()) == 12
    document = json.loads(
        invoke(pareto.pareto, *words, "--json", "--objectives", "time,power").stdout
    )
    assert document["objectives"] == ["time", "power"]
    assert 0 < len(document["front"]) <= 12


def test_categories_have_a_trace_each(tmp_path):
    page = tmp_path / "front.html"
    words = ("resnet-50", "--gpus", "8xV100", "--vary", "gpu=v100,t4", "--vary", "batch=256")
    result = invoke(pareto.pareto, *words, "--html", str(page))
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert '"name":"v100"' in text
    assert '"name":"t4"' in text
    # Plotly's script and template also name colour scales; the markers must not.
    assert '"colorbar":{"title":{"text":"gpu"}}' not in text


def test_pareto_over_gpu_types_and_wanted_batches():
    words = (
        "cnn-a",
        "--plan",
        "asynchronous",
        "--batch",
        "8",
        "--vary",
        "gpu=k80,k20x",
        "--vary",
        "gpus=8:64:8",
    )
    result = invoke(pareto.pareto, *words, "--keep", "batch=100:300", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert {p["point"]["gpu"] for p in document["points"]} <= {"k80", "k20x"}
    assert all(100 <= p["batch"] <= 300 for p in document["points"] if not p["error"])


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        (("--vary", "gpus"), "gpus=1,2,4"),
        (("--vary", "gpus=4:1:1"), "last ≥ first"),
        (("--vary", "gpus=nan"), "finite"),
        (("--vary", "wings=1,2"), "has no wings"),
        (("--vary", "gpus=1,2", "--objectives", "beauty"), "emissions"),
        (("--vary", "gpus=2,4", "--keep", "beauty=1:2"), "no figure 'beauty'"),
        (("--vary", "batch=1,2"), "at least 8"),
    ],
)
def test_bad_ranges_get_one_clear_message(arguments, expected_text):
    message = refused(pareto.pareto, "resnet-50", "--gpus", "8xV100", *arguments)
    assert expected_text in message


def test_timeline_writes_a_trace(tmp_path):
    path = tmp_path / "trace.json"
    result = invoke(
        simulate.timeline, "resnet-50", "--gpus", "4xV100", "--batch", "64", "-o", str(path)
    )
    assert result.exit_code == 0, result.output
    assert "gpu memory utilization" in result.output
    assert json.loads(path.read_text())["traceEvents"]


def test_hardware_and_workloads_show_figures_with_sources():
    assert "nvlink-3" in invoke(commands.hardware).output
    assert "data sheet" in invoke(commands.hardware, "a100").output
    assert json.loads(invoke(commands.hardware, "gpus", "--json").output)["gpus"]
    assert "resnet-50" in invoke(commands.workloads).output
    shown = invoke(commands.workloads, "gpt-175b").output
    assert "Brown et al. 2020" in shown
    assert "h100" in refused(commands.hardware, "h10")


def test_a_cluster_file_is_checked(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("nodes = 3\nnode = 'dgx-2'\n")
    assert "3 nodes x 16 v100-32gb" in invoke(cluster.cluster, "check", str(path)).output
    result = invoke(simulate.simulate, "resnet-50", "--cluster", str(path), "--gpus", "32")
    assert "on 32 GPUs" in result.output
    assert "it has 48" in refused(
        simulate.simulate, "resnet-50", "--cluster", str(path), "--gpus", "64"
    )


def test_an_unknown_gpu_is_predicted_from_its_data_sheet():
    sheet = ["--gpu-flops", "bf16=989e12", "--gpu-flops", "fp32=67e12"]
    size = ["--gpu-memory", "85e9", "--gpu-bandwidth", "3.35e12"]
    arguments = ["llama-3-8b", "--gpus", "8xX100", "--sharding", "weights", "--batch", "8"]
    result = invoke(simulate.simulate, *arguments, *sheet, *size, "--epochs", "0.001", "--json")
    assert "between 1/2 and 2 times" in result.stderr
    known = invoke(
        simulate.simulate, *arguments[:2], "8xH100", *arguments[3:], "--epochs", "0.001", "--json"
    )
    seconds = [json.loads(r.stdout)["seconds"] for r in (result, known)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.6)
    for wrong in (["--gpu-flops", "bf16"], sheet, [*sheet, "--gpu-memory", "1"], size):
        error = CliRunner().invoke(simulate.simulate, [*arguments, *wrong]).exception
        assert isinstance(error, InputError), wrong


@pytest.mark.parametrize("paper", validate.PAPERS)
def test_the_papers_figures_come_out(paper):
    result = invoke(validate.reproduce, paper)
    assert result.exit_code == 0, result.output
    rows = json.loads(invoke(validate.reproduce, paper, "--json").stdout)
    assert all(row["inside"] for row in rows)
    assert sum(row["band"] is not None for row in rows) >= 6


PRINTED = {
    "merpsys": ("45", "10", "335", "8.25"),
    "sprint": ("165.1", "1779", "170.1", "1462", "166.6", "1245", "171.5", "1128"),
    "limits": ("144", "a few dozen"),
    "candle": (
        "10.3", "22", "above 3", "153", "48", "43.72", "4.65", "37.65", "5.3", "67.68", "55.93",
        "34.23", "52.44", "22.31", "28.59", "78.25", "78", "75.24", "79.5", "69.7", "77.11",
        "55.45", "55.44", "48.63", "56.62", "45.86", "53.91", "6.5",
    ),
}  # fmt: skip
"""Figures in the papers' texts."""


@pytest.mark.parametrize("paper", validate.PAPERS)
def test_only_what_a_paper_prints_is_called_published(paper):
    rows = json.loads(invoke(validate.reproduce, paper, "--json").stdout)
    nodes = {"8", "7", "12"} if paper == "sprint" else {"yes"}
    published = {row["published"] for row in rows} - {None}
    assert published - nodes == set(PRINTED[paper])
    for row in rows:
        assert row["band"] or "see docs" in row["note"], "judged, or explained"
        assert (row["origin"] == "worked out") == (row["published"] is None)
        is_computed = "from it" in row["note"]
        assert (row["origin"] == "identity") == is_computed
        if "fitted on" in row["note"] or "tuned" in row["note"]:
            assert row["origin"] == "fitted"


def test_a_figure_outside_its_band_is_exit_code_1(monkeypatch):
    from carme.simulator.papers import PublishedFigure

    rows = [PublishedFigure("figure", reference="1", simulated=3.0, unit="s", low=0.5, high=1.5)]
    monkeypatch.setitem(validate.PAPERS, "limits", lambda: rows)
    result = invoke(validate.reproduce, "limits")
    assert result.exit_code == 1
    assert "outside" in result.output


def test_an_onnx_file_needs_sizes_and_its_warnings_are_shown(tmp_path):
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = make.make_graph(
        [
            make.make_node("MatMul", ["x", "w"], ["h"]),
            make.make_node("Swirl", ["h"], ["y"], domain="mine"),
        ],
        "net",
        [make.make_tensor_value_info("x", kind, ["N", "tokens", 8])],
        [make.make_tensor_value_info("y", kind, None)],
        [onnx.TensorProto(name="w", data_type=kind, dims=(8, 4))],
    )
    opsets = [make.make_opsetid("", 20), make.make_opsetid("mine", 1)]
    path = tmp_path / "net.onnx"
    path.write_bytes(make.make_model(graph, opset_imports=opsets).SerializeToString())
    words = (str(path), "--gpus", "1xV100")
    assert "leaves sizes open: tokens" in refused(simulate.simulate, *words)
    assert "NAME=SIZE" in refused(simulate.simulate, *words, "--dimension", "tokens")
    toml = ("resnet-50", "--gpus", "1xV100", "--dimension", "tokens=5")
    assert "no open dimensions" in refused(simulate.simulate, *toml)
    words = (*words, "--dimension", "tokens=128")
    result = CliRunner().invoke(simulate.simulate, words)
    assert result.exit_code == 0, result.output
    assert "warning: operator Swirl" in result.output
    document = json.loads(CliRunner().invoke(simulate.simulate, (*words, "--json")).stdout)
    assert "% of the elements moved" in document["warnings"][0]
