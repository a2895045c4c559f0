"""Configurations of Hugging Face models: published parameter counts, and what is refused."""

import json

import pytest

from carme import library
from carme.errors import InputError, MissingError
from carme.library.huggingface import from_config
from carme.simulator.plans import Synchronous
from carme.simulator.runs import simulate

GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
        "n_inner": None, "vocab_size": 50257}  # fmt: skip
BERT = {"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 30522,
        "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 512,
        "type_vocab_size": 2}  # fmt: skip
OPT = {"model_type": "opt", "hidden_size": 2048, "num_hidden_layers": 24, "ffn_dim": 8192,
       "num_attention_heads": 32, "max_position_embeddings": 2048, "vocab_size": 50272}  # fmt: skip
NEOX = {"model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44, "rotary_pct": 0.25,
        "num_attention_heads": 64, "intermediate_size": 24576, "vocab_size": 50432,
        "max_position_embeddings": 2048, "tie_word_embeddings": False}  # fmt: skip
LLAMA2 = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 32000,
          "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 11008,
          "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
          "torch_dtype": "float16"}  # fmt: skip
LLAMA3 = {**LLAMA2, "vocab_size": 128256, "num_key_value_heads": 8, "intermediate_size": 14336,
          "max_position_embeddings": 8192, "torch_dtype": "bfloat16"}  # fmt: skip
MISTRAL = {**LLAMA3, "model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096,
           "max_position_embeddings": 32768}  # fmt: skip
MIXTRAL = {**MISTRAL, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2,
           "sliding_window": None}  # fmt: skip

DEEPSEEK = {**LLAMA2, "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
            "vocab_size": 129280, "num_attention_heads": 128, "num_key_value_heads": 128,
            "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
            "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
            "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128}  # fmt: skip
GPT_OSS = {**LLAMA2, "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36,
           "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
           "vocab_size": 201088, "intermediate_size": 2880, "num_local_experts": 128,
           "num_experts_per_tok": 4, "sliding_window": 128, "hidden_act": "silu",
           "layer_types": ["sliding_attention", "full_attention"] * 18}  # fmt: skip
GLM_AIR = {**LLAMA2, "model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 46,
           "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
           "vocab_size": 151552, "intermediate_size": 10944, "moe_intermediate_size": 1408,
           "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8,
           "first_k_dense_replace": 1, "hidden_act": "silu"}  # fmt: skip
QWEN_MOE = {**LLAMA2, "model_type": "qwen2_moe", "hidden_size": 2048, "num_hidden_layers": 24,
            "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936,
            "intermediate_size": 5632, "moe_intermediate_size": 1408, "num_experts": 60,
            "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4}  # fmt: skip


def read(config, **dimensions):
    return from_config(config, "net", "config.json", dimensions)


@pytest.mark.parametrize(
    ("config", "parameters", "within"),
    [
        (GPT2, 124_439_808, 0),
        (BERT, 109_482_240 - 768 * 769, 1e-3),  # without the pooler
        (OPT, 1_315_758_080, 1e-3),
    ],
    ids=["gpt2", "bert-base", "opt-1.3b"],
)
def test_published_parameter_counts(config, parameters, within):
    workload = read(config)
    assert workload.parameter_count == pytest.approx(parameters, rel=within, abs=0)
    (warning,) = workload.warnings
    assert "the most that the file allows" in warning
    assert read(config, sequence=128).warnings == ()
    assert read(config, sequence=128).transformer.positions == workload.transformer.positions


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (NEOX, 20_554_567_680),
        (LLAMA2, 6_738_415_616),
        (LLAMA3, 8_030_261_248),
        (MISTRAL, 7_241_732_096),
        (MIXTRAL, 46_702_792_704),
        (DEEPSEEK, 671e9),
    ],
    ids=["gpt-neox-20b", "llama-2-7b", "llama-3-8b", "mistral-7b", "mixtral-8x7b", "deepseek-v3"],
)
def test_rotary_gated_grouped_and_sparse_models(config, parameters):
    workload = read(config, sequence=4096)
    assert workload.parameter_count == pytest.approx(parameters, rel=2e-3)
    assert workload.transformer.positions == 0
    assert workload.warnings == ()


@pytest.mark.parametrize(
    ("config", "parameters"),
    [(GPT_OSS, 116.8e9), (GLM_AIR, 106e9), (QWEN_MOE, 14.3e9)],
    ids=["gpt-oss-120b", "glm-4.5-air", "qwen1.5-moe"],
)
def test_experts_of_other_families(config, parameters):
    workload = read(config, sequence=4096)
    assert workload.parameter_count == pytest.approx(parameters, rel=0.02)
    other = {**config, "model_type": "new", "hidden_act": "silu", "rope_theta": 1e4}
    renamed = read(other, sequence=4096)
    assert renamed.parameter_count == workload.parameter_count
    assert "model_type new is unknown" in renamed.warnings[0]


def test_some_blocks_have_a_window():
    assert read(GPT_OSS).transformer.window_layers == 18
    pattern = {**MISTRAL, "sliding_window_pattern": 6}
    assert read(pattern).transformer.window_layers == 32 - 5
    full = {**MISTRAL, "layer_types": ["full_attention"] * 32}
    assert read(full).transformer.window is None


def test_sliding_windows():
    assert read(MISTRAL).transformer.window == 4096
    assert read(MISTRAL, sequence=2048).transformer.window is None


def test_types_and_sequences():
    assert read(LLAMA3).precision == "bf16"
    assert read(LLAMA2, sequence=2048).transformer.sequence == 2048
    with pytest.raises(InputError, match="no dimension tokens"):
        read(GPT2, tokens=5)
    with pytest.raises(InputError, match="how long a sequence"):
        read({k: v for k, v in GPT2.items() if k != "n_positions"})


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ([], "not a configuration"),
        ({}, "hidden_size"),
        ({**GPT2, "n_layer": "12"}, "n_layer is '12'"),
        ({**GPT2, "n_layer": True}, "n_layer is 'True'"),
        ({**GPT2, "n_layer": 10**30}, "n_layer"),
        ({**GPT2, "n_head": -1}, "n_head"),
        ({**GPT2, "n_head": 7}, "hidden"),
        ({**LLAMA3, "num_key_value_heads": 5}, "key_value_heads"),
        ({"model_type": "t5", "is_encoder_decoder": True, "d_model": 512}, "encoder-decoder"),
        ({"model_type": "vit", "patch_size": 16, "hidden_size": 768}, "vision"),
    ],
)
def test_what_is_no_transformer_is_refused(config, says):
    with pytest.raises(InputError, match=says):
        read(config)


def test_a_file_is_a_workload(tmp_path):
    path = tmp_path / "gpt2-small" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(GPT2))
    workload = library.workload(str(path))
    assert workload.name == "gpt2-small"
    plan = Synchronous(gpus=8, batch=64, micro_batch=1)
    assert simulate(workload, library.cluster_of("8xA100-80gb"), plan).seconds > 0
    path.write_text("{")
    with pytest.raises(InputError, match="not a JSON file"):
        library.workload(str(path))
    path.write_text("[" * 500_000)
    with pytest.raises(InputError, match="not a JSON file"):
        library.workload(str(path))
    with pytest.raises(MissingError):
        library.workload(str(tmp_path / "none.json"))
