"""Transformers: published parameter counts, attention kinds, heads, experts, and their division."""

import pytest
from pydantic import ValidationError

from carme import library
from carme.errors import InputError
from carme.simulator.costs.step import plan_step
from carme.simulator.plans import Synchronous
from carme.simulator.precision import BYTES_PER_ELEMENT, PRECISIONS
from carme.simulator.transformer import Transformer
from carme.simulator.transformer_costs import Split, transformer_costs
from carme.simulator.workload import Dataset, Workload

A100 = library.cluster_of("64xA100-80gb")
H100 = library.cluster_of("64xH100")
LLAMA = {
    "position_encoding": "rotary", "norm": "rms", "gated": True, "biases": False, "tied": False,
    "dropout": False,
}  # fmt: skip
GPT = {"hidden": 1024, "layers": 8, "heads": 16, "sequence": 1024, "vocabulary": 50304}
MIXTRAL = {
    "hidden": 4096, "layers": 32, "heads": 32, "key_value_heads": 8, "sequence": 4096,
    "vocabulary": 32000, "experts": {"count": 8, "active": 2, "width": 14336}, **LLAMA,
}  # fmt: skip


def workload(precision="bf16", **sizes):
    return Workload(
        name="t", transformer=sizes, dataset=Dataset(samples=1), optimizer="adam",
        precision=precision,
    )  # fmt: skip


PUBLISHED = {
    "GPT-2": (124_439_808, {
        "hidden": 768, "layers": 12, "heads": 12, "sequence": 1024, "vocabulary": 50257,
    }),
    "Llama 2 7B": (6_738_415_616, {
        "hidden": 4096, "layers": 32, "heads": 32, "sequence": 4096, "vocabulary": 32000,
        "feed_forward": 11008, **LLAMA,
    }),
    "Llama 3 70B": (70_553_706_496, {
        "hidden": 8192, "layers": 80, "heads": 64, "key_value_heads": 8, "sequence": 8192,
        "vocabulary": 128256, "feed_forward": 28672, **LLAMA,
    }),
    "Mixtral 8x7B": (46_702_792_704, MIXTRAL),
    "Qwen3 30B-A3B": (30_532_122_624, {
        "hidden": 2048, "layers": 48, "heads": 32, "key_value_heads": 4, "head_width": 128,
        "sequence": 4096, "vocabulary": 151936,
        "experts": {"count": 128, "active": 8, "width": 768}, **LLAMA,
    }),
    "DeepSeek-V3": (671_026_419_200, {
        "hidden": 7168, "layers": 61, "heads": 128, "sequence": 4096, "vocabulary": 129280,
        "feed_forward": 18432,
        "experts": {"count": 256, "active": 8, "width": 2048, "shared_width": 2048, "layers": 58},
        "latent": {
            "query_rank": 1536, "key_value_rank": 512, "plain_width": 128, "position_width": 64,
            "value_width": 128,
        }, **LLAMA,
    }),
    "T5 3B": (2_851_598_336, {
        "hidden": 1024, "layers": 24, "heads": 32, "head_width": 128, "sequence": 128,
        "vocabulary": 32128, "feed_forward": 16384, "encoder": {"layers": 24, "sequence": 512},
        "position_encoding": "none", "norm": "rms", "biases": False,
    }),
    "ViT-L/16": (304_326_632, {
        "hidden": 1024, "layers": 24, "heads": 16, "sequence": 197, "vocabulary": 0,
        "patches": {"size": 16}, "outputs": [{"outputs": 1000, "positions": 1}], "causal": False,
    }),
    "MPT 7B": (6_658_859_008, {
        "hidden": 4096, "layers": 32, "heads": 32, "sequence": 2048, "vocabulary": 50368,
        "biases": False,
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name):
    published, sizes = PUBLISHED[name]
    assert workload(**sizes).parameter_count == pytest.approx(published, rel=2e-4)


def test_bert_for_squad_has_no_vocabulary_head():
    squad = library.workload("bert-squad")
    heads = [cost for cost in squad.costs if cost.name == "output"]
    assert [head.columns for head in heads] == [2]
    # 109.5 million with the pooler, which SQuAD does not use (Devlin et al. 2019).
    assert squad.parameter_count == pytest.approx(108.9e6, rel=2e-3)
    blocks = 12 * (24 * 384 * 768**2 + 4 * 384**2 * 768)
    assert squad.forward_flops == pytest.approx(blocks, rel=1e-3)


def test_fused_attention_halves_causal_work_and_stores_no_scores():
    unfused, fused, both_ways = (
        transformer_costs(Transformer(**GPT, attention=kind, causal=causal))
        for kind, causal in (("unfused", True), ("flash-2", True), ("flash-2", False))
    )
    scores, core, whole = (
        next(c for c in rows if c.name == "attention") for rows in (unfused, fused, both_ways)
    )
    assert whole.forward_flops == scores.forward_flops
    # Half, and the tiles of 128 on the diagonal in full.
    assert core.forward_flops == pytest.approx(scores.forward_flops * (0.5 + 64 / 1024))
    assert scores.activations > 1024 * 1024 * 16 * 2.5
    assert core.activations < 4 * 1024 * 1024
    longer = GPT | {"sequence": 16384}
    slow, quick = (
        plan_step(workload(**longer, attention=kind), A100, Synchronous(batch=1))
        for kind in ("unfused", "flash-2")
    )
    assert quick.kernel_seconds < slow.kernel_seconds / 2
    assert quick.memory.activations < slow.memory.activations / 10


def test_a_window_bounds_the_work_of_long_sequences():
    plain, half, windowed = (
        workload(**(GPT | {"sequence": 32768}), attention="flash-2", window=window,
                 window_layers=layers).forward_flops
        for window, layers in ((None, None), (1024, 4), (1024, None))
    )  # fmt: skip
    assert windowed < half < plain
    assert half == pytest.approx((plain + windowed) / 2)


def test_grouped_queries_shrink_keys_and_values():
    rows = {c.name: c for c in transformer_costs(Transformer(**GPT, key_value_heads=2))}
    assert rows["query-key-value"].columns == 1024 + 2 * 2 * 64
    with pytest.raises(ValidationError, match="multiple of key_value_heads"):
        Transformer(**GPT, key_value_heads=3)


def test_experts_compute_only_the_active_and_store_all():
    mixtral = workload(**MIXTRAL)
    dense = workload(**(MIXTRAL | {"experts": None, "feed_forward": 2 * 14336}))
    assert mixtral.forward_flops == pytest.approx(dense.forward_flops, rel=2e-3)
    assert mixtral.parameter_count > 3 * dense.parameter_count
    alone = plan_step(mixtral, H100, Synchronous(gpus=8, batch=8))
    spread = plan_step(mixtral, H100, Synchronous(gpus=8, batch=8, expert=8))
    assert spread.memory.weights < alone.memory.weights / 5
    assert spread.tensor_parallel_seconds > 0 == alone.tensor_parallel_seconds
    divided = plan_step(mixtral, H100, Synchronous(gpus=8, batch=8, tensor=8))
    assert divided.memory.weights == pytest.approx(2 * mixtral.parameter_count / 8, rel=0.01)
    with pytest.raises(InputError, match="8 experts over 16 GPUs"):
        plan_step(mixtral, H100, Synchronous(gpus=16, batch=16, expert=16))


def test_copies_of_experts_are_reduced_where_the_rest_has_one_copy():
    mixtral = workload(**MIXTRAL)
    plan = Synchronous(gpus=8, batch=8, tensor=8, expert=4)
    assert plan.replicas == 1
    step = plan_step(mixtral, H100, plan)
    experts = sum(c.parameters * c.repeat for c in mixtral.costs if c.experts)
    seconds = 2 * experts / 4 / H100.node.gpu_link.rate  # two copies: half of 2 x 2 bytes
    assert step.bucket_all_reduce_seconds.sum() == pytest.approx(seconds, rel=0.2)
    assert plan_step(mixtral, H100, plan.model_copy(update={"expert": 8})).gradient_bytes == 0


def test_context_parallelism_passes_expanded_keys_and_values():
    assert Transformer(**GPT).key_value_width == 2 * 1024
    deepseek = Transformer(**PUBLISHED["DeepSeek-V3"][1])
    assert deepseek.key_value_width == 128 * (128 + 64 + 128)


@pytest.mark.parametrize("sizes", [GPT, PUBLISHED["DeepSeek-V3"][1], PUBLISHED["T5 3B"][1]])
@pytest.mark.parametrize("split", [Split(tensor=4), Split(tensor=2, context=2)])
def test_the_pieces_do_the_work_of_the_whole(sizes, split):
    spec = Transformer(**sizes)
    whole, piece = (
        {c.name: c for c in transformer_costs(spec, s)} for s in (Split(), split)
    )  # fmt: skip
    pieces = split.tensor * split.context
    for name in ("attention", "latent attention", "projection", "feed-forward in", "expert in"):
        if name in whole:
            assert piece[name].forward_flops == pytest.approx(whole[name].forward_flops / pieces)


def test_each_part_of_training_has_its_own_type():
    """Weights, gradients, states and activations of one GPT in four recipes (bytes a parameter)."""
    parameters = workload(**GPT).parameter_count
    per_parameter = {}
    for precision in ("fp32", "bf16", "amp-bf16", "fp8"):
        memory = plan_step(workload(precision, **GPT), H100, Synchronous(batch=1)).memory
        per_parameter[precision] = tuple(
            round(value / parameters, 2)
            for value in (memory.weights, memory.gradients, memory.optimizer)
        )
    assert per_parameter == {
        "fp32": (4, 4, 8),
        "bf16": (2, 2, 12),
        "amp-bf16": (6, 4, 8),
        "fp8": (3, 2, 12),
    }
    megatron = Synchronous(batch=1, gradient_type="fp32")
    memory = plan_step(workload("bf16", **GPT), H100, megatron).memory
    assert memory.gradients == pytest.approx(4 * parameters)
    narrow, wide = (
        plan_step(workload(p, **GPT), H100, Synchronous(batch=4)).memory.activations
        for p in ("fp8", "bf16")
    )
    assert wide / 2 < narrow < wide
    assert BYTES_PER_ELEMENT["mxfp8"] == 1.03125
    assert BYTES_PER_ELEMENT["nvfp4"] == 0.5625
    assert set(PRECISIONS) >= {"mxfp8", "nvfp4", "tf32"}


def test_a_gpu_without_a_type_says_so():
    with pytest.raises(InputError, match="has no fp8"):
        plan_step(workload("fp8", **GPT), A100, Synchronous(batch=1))
    mx = plan_step(workload("mxfp8", **GPT), H100, Synchronous(batch=64))
    assert mx.kernel_seconds < plan_step(
        workload("bf16", **GPT), H100, Synchronous(batch=64)
    ).kernel_seconds  # fmt: skip
