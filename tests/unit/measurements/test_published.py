"""Tables of published runs: reading, eligibility, names, runs and the figures over them."""

import json

import pytest
from click.testing import CliRunner

from carme import library
from carme.errors import InputError, MissingError
from carme.measurements import commands
from carme.measurements.eligibility import RULE, parse_unit, why_not_eligible
from carme.measurements.judgement import Judgement, judge
from carme.measurements.names import find_gpu, find_model, find_precision
from carme.measurements.rows import PublishedRow, as_number, is_kernel_table, parse_rows
from carme.measurements.runs import NotModelledError, published_run
from carme.measurements.summary import summarize, summary_tables

HEADER = (
    "source_repo,source_path,commit,model,params,hidden,layers,heads,kv_heads,ffn,seq_len,vocab,gpu,"
    "gpu_memory_gb,form,gpus,nodes,gpus_per_node,interconnect,precision,tp,pp,vp,dp,cp,ep,"
    "zero_stage_or_sharding,attention,recompute,compile_or_graphs,micro_batch,grad_accum,"
    "global_batch,throughput,throughput_unit,memory_gb_per_gpu,power_watts,date_or_version,notes,"
    "tflops_per_gpu_printed,doubtful"
)
RESNET = {
    "source_repo": "someone/benchmarks",
    "model": "ResNet-50",
    "gpu": "Tesla V100-SXM2-16GB",
    "form": "sxm",
    "gpus": "1",
    "precision": "fp32",
    "micro_batch": "64",
    "throughput": "360",
    "throughput_unit": "images_per_s",
    "doubtful": "0",
}
GPT = {
    "source_repo": "someone/benchmarks",
    "model": "GPT 7B",
    "hidden": "4096",
    "layers": "32",
    "heads": "32",
    "seq_len": "2048",
    "vocab": "50k",
    "gpu": "A100",
    "gpu_memory_gb": "80",
    "form": "sxm",
    "gpus": "16",
    "gpus_per_node": "8",
    "precision": "bf16",
    "tp": "2",
    "pp": "2",
    "micro_batch": "1",
    "global_batch": "64",
    "recompute": "full",
    "zero_stage_or_sharding": "ZeRO-1",
    "attention": "flash",
    "throughput": "6.0",
    "throughput_unit": "step_seconds",
    "doubtful": "0",
}


def row(base=RESNET, **changed):
    return PublishedRow("a.csv", 2, base | changed)


def table(*rows):
    columns = HEADER.split(",")
    lines = [",".join((base | {}).get(c, "") for c in columns) for base in rows]
    return "\n".join([HEADER, *lines, ""])


@pytest.mark.parametrize(
    ("text", "number"),
    [("2048", 2048), ("1,024", 1024), ("250k", 250_000), ("20B", 20e9), ("", None), ("a 1", None),
     ("128 (FP32) / 256 (AMP)", None), ("0.5", 0.5), ("1e-3", 0.001)],
)  # fmt: skip
def test_numbers_are_read_as_they_are_printed(text, number):
    assert as_number(text) == number


def test_rows_are_read_with_their_lines():
    rows = parse_rows(table(RESNET, GPT), "a.csv")
    assert [(r.line, r.text("model"), r.source) for r in rows] == [
        (2, "ResNet-50", "a"),
        (3, "GPT 7B", "a"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "a.csv, line 1: no column"),
        (table(RESNET) + "1,2\n", "a.csv, line 3: 2 cells"),
        (table(RESNET | {"throughput": "fast"}), "a.csv, line 2: throughput 'fast'"),
        (table(RESNET | {"throughput": "0"}), "a.csv, line 2: throughput '0'"),
        (table(RESNET) + 'x"y,\n', "a.csv, line 3"),
        ("", "a.csv, line 1: no column"),
    ],
)
def test_a_malformed_table_is_refused_with_its_line(text, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        parse_rows(text, "a.csv")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"doubtful": "1"}, "doubtful"),
        ({"throughput_unit": "time_to_train_seconds"}, "unit time_to_train_seconds"),
        ({"throughput_unit": "tflops_per_gpu"}, "unit tflops_per_gpu"),
        ({"gpu": "TPU v3"}, "device of another kind"),
        ({"gpu": "Graphcore Bow IPU"}, "device of another kind"),
        ({"gpus": ""}, "no number of GPUs"),
        ({"micro_batch": "64 (FP32) / 128 (AMP)"}, "no numeric batch"),
        ({"precision": ""}, "no precision"),
        ({"precision": "", "source_repo": "mlcommons/training_results_v3.0"}, ""),
        ({"model": "BERT", "throughput_unit": "samples_per_s"}, "no sequence length"),
        ({"model": "BERT", "throughput_unit": "samples_per_s", "seq_len": "128"}, ""),
        ({"throughput_unit": "tokens_per_s"}, "no sequence length"),
    ],
)
def test_eligibility_is_a_rule_on_the_columns(changed, reason):
    assert why_not_eligible(row(**changed)) == reason


def test_units_say_what_they_count():
    assert parse_unit("tokens_per_s_per_gpu").per_gpu
    assert parse_unit("mol_per_ms").per_second == 1000
    assert parse_unit("items_per_s(mel_frames)").item == "mels"
    assert parse_unit("furlongs_per_fortnight") is None


@pytest.mark.parametrize(
    ("text", "form", "memory", "gpu"),
    [
        ("A100-SXM4-40GB", "sxm", None, "a100"),
        ("A100", "sxm", 80, "a100-80gb"),
        ("NVIDIA A100-SXM-80GB CTS", "sxm", None, "a100-80gb"),
        ("A100 80GB PCIe", "pcie", None, "a100-pcie-80gb"),
        ("NVIDIA A100 - PCIe - 80 GB", "pcie", None, "a100-pcie-80gb"),
        ("H100 80GB HBM3", "", None, "h100"),
        ("NVIDIA H100-PCIe-80GB", "pcie", None, "h100-pcie"),
        ("Tesla V100-SXM3-32GB", "sxm", None, "v100-32gb"),
        ("GeForce RTX 2080 Super with Max-Q Design", "", None, "rtx-2080-super-max-q"),
        ("GeForce RTX 2080 Ti", "pcie", None, "rtx-2080-ti"),
        ("RTX2080Ti", "pcie", None, "rtx-2080-ti"),
        ("Pascal Titan X", "pcie", None, "titan-x-pascal"),
        ("Maxwell Titan X", "pcie", None, "titan-x"),
        ("TITAN Xp", "pcie", None, "titan-xp"),
        ("Quadro RTX 8000", "pcie", None, "rtx-8000"),
        ("RadeonProVII", "pcie", None, "radeon-pro-vii"),
        ("Habana Gaudi2", "", None, "gaudi-2"),
        ("AMD Instinct MI300X", "", None, "mi300x"),
        ("NVIDIA RTX 6000 Ada Generation", "pcie", None, "rtx-6000-ada"),
        ("GB200", "", None, "gb200"),
        ("NVIDIA L40S", "pcie", None, "l40s"),
        ("imagined", "", None, None),
    ],
)
def test_gpus_are_found_by_the_names_that_tables_print(text, form, memory, gpu):
    assert find_gpu(text, form, memory) == gpu


@pytest.mark.parametrize(
    ("model", "workload"),
    [("resnet50v1.5", "resnet-50"), ("wide_resnet50_2", "wide-resnet-50-2"),
     ("mnasnet0_5", "mnasnet-0.5"), ("shufflenet_v2_x1_0", "shufflenet-v2-x1.0"),
     ("vgg16_bn", "vgg-16-bn"), ("InceptionV3", "inception-v3"), ("GPT 13B", "gpt-13b"),
     ("GPT 1.3B", "gpt-1.3b"), ("LLAMA3.1_405B", "llama-3.1-405b"),
     ("DeepSeekV3 (w/o MTP)", "deepseek-v3"), ("gnmt", "gnmt")],
)  # fmt: skip
def test_models_are_found_by_the_names_that_tables_print(model, workload):
    assert find_model(row(model=model)).workload == workload


def test_every_name_leads_to_an_entry_of_the_library():
    from carme.measurements.names import table as names

    workloads = set(library.names("workloads"))
    for entry in names().models:
        if "\\" not in entry.workload:
            assert entry.workload in workloads, entry
    for entry in names().interconnects:
        if entry.node:
            library.node(entry.node)
        if entry.network:
            library.link(entry.network)


@pytest.mark.parametrize(
    ("text", "recipe"),
    [("fp32(tf32 default on Ampere+ in NGC)", "tf32"), ("mixed (fp16 amp)", "amp-fp16"),
     ("amp_bf16", "amp-bf16"), ("BF16", "bf16"), ("FP8-MX", "mxfp8"), ("NVFP4", "nvfp4"),
     ("FP8-CS", "fp8"), ("fp64", "fp64"), ("", None)],
)  # fmt: skip
def test_precisions_are_recipes(text, recipe):
    assert find_precision(text) == recipe


def test_a_run_has_the_plan_of_its_columns():
    run = published_run(row(GPT))
    (plan,) = run.plans
    assert (plan.tensor, plan.pipeline, plan.data_parallel) == (2, 2, 4)
    assert (plan.batch, plan.micro_batch, plan.recompute) == (64, 1, "full")
    assert plan.sharding == "optimizer"
    assert run.workload.transformer.attention == "flash-2"
    assert run.workload.transformer.vocabulary == 50_000
    assert (run.cluster.nodes, run.cluster.node.gpus) == (2, 8)
    assert run.cluster.node.gpu.name == "a100-80gb"
    assert run.measured_seconds == 6.0


def test_throughput_becomes_the_time_of_a_step():
    assert published_run(row(throughput="128")).measured_seconds == pytest.approx(0.5)
    tokens = row(GPT, throughput="1000", throughput_unit="tokens_per_s_per_gpu")
    assert published_run(tokens).measured_seconds == pytest.approx(64 * 2048 / 16000)


def test_a_run_of_many_gpus_has_the_batch_of_all():
    assert published_run(row(gpus="4")).plans[0].batch == 256


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"gpu": "imagined"}, "GPU imagined"),
        ({"model": "imagined"}, "model imagined"),
        ({"zero_stage_or_sharding": "ZeRO-3 + optimizer offload"}, "offload"),
    ],
)
def test_what_the_library_does_not_know_is_named(changed, reason):
    with pytest.raises(NotModelledError, match=reason):
        published_run(row(**changed))


def test_a_step_without_the_optimizer_is_shorter():
    whole = judge(row())
    timed = judge(row(notes="forward+backward incl. copy, no optimizer step"))
    assert timed.predicted_seconds < whole.predicted_seconds


def test_rows_without_a_prediction_count_as_errors_of_100_percent():
    rows = [
        Judgement(row(), measured_seconds=1.0, predicted_seconds=1.2),
        Judgement(row(), measured_seconds=1.0, predicted_seconds=0.8),
        Judgement(row(), not_modelled="model x"),
        Judgement(row(), measured_seconds=1.0, predicted_seconds=1.0, refused="too large"),
        Judgement(row(), not_eligible="doubtful"),
    ]
    figures = summarize(rows, source="a")
    assert (figures.rows, figures.eligible, figures.modelled) == (5, 4, 3)
    assert figures.mean_error == pytest.approx((0.2 + 0.2 + 1 + 1) / 4)
    assert figures.bias == pytest.approx((1.2 * 0.8) ** (1 / 3))
    assert (figures.falsely_refused, figures.not_modelled) == (1, {"model x": 1})


def test_memory_is_compared_and_doubled_where_it_is_nearly_full():
    full = judge(row(micro_batch="128", memory_gb_per_gpu="15.5"))
    assert full.doubled_is_refused is not None
    assert judge(row(memory_gb_per_gpu="8")).doubled_is_refused is None
    figures = summary_tables([full]).sources[0]
    assert (figures.memory_rows, figures.nearly_full) == (1, 1)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "a.csv").write_text(table(RESNET, GPT, RESNET | {"doubtful": "1"}))
    (tmp_path / "published" / "kernels.csv").write_text("gpu,m,n,k,time_ms\nx,1,1,1,1\n")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(commands.validate, ["--suite", "published", *arguments])


def test_the_command_prints_rule_tables_and_skipped_files(folder):
    result = run("--data", str(folder))
    assert result.exit_code == 0, result.exception
    assert RULE in result.stdout
    assert "kernels.csv: times of kernels" in result.stdout
    assert "mosaicml_llm_foundry.csv: not there" in result.stdout
    assert "a, not eligible: doubtful 1" in result.stdout


def test_the_command_answers_programs(folder):
    answer = json.loads(run("--data", str(folder), "--rows", "--json").stdout)
    (source,) = answer["sources"]
    assert (source["source"], source["rows"], source["eligible"]) == ("a", 3, 2)
    assert {g["gpu"] for g in answer["gpus"]} == {"v100", "a100-80gb"}
    assert [r["line"] for r in answer["rows"]] == [2, 3, 4]


def test_a_malformed_file_ends_the_command(folder):
    (folder / "published" / "b.csv").write_text(table(RESNET) + "1\n")
    error = run("--data", str(folder)).exception
    assert isinstance(error, InputError)
    assert "b.csv, line 3" in str(error)


def test_a_folder_without_tables_is_named(tmp_path):
    assert isinstance(run("--data", str(tmp_path)).exception, MissingError)
    (tmp_path / "published").mkdir()
    assert isinstance(run("--data", str(tmp_path)).exception, MissingError)


def test_kernel_tables_are_told_by_their_columns():
    assert is_kernel_table("gpu,fwd_ms\n")
    assert not is_kernel_table(HEADER)
