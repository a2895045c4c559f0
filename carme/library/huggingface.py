"""A Hugging Face `config.json` as a workload: its sizes become a transformer's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from carme.errors import InputError, MissingError
from carme.simulator.precision import Precision
from carme.simulator.transformer import Transformer
from carme.simulator.workload import Dataset, Workload
from carme.validation import explain

MAX_BYTES = 1_000_000
_NAMES = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim", "n_embed"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocabulary": ("vocab_size",),
    "feed_forward": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim"),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length"),
}
"""What the libraries' models call each size."""
_ROTARY = ("rope_theta", "rope_scaling", "rope_parameters", "rotary_pct", "rotary_dim")
_GATED = frozenset(
    """
    llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3_text phi3 olmo olmo2
    cohere granite stablelm internlm2 deepseek_v2 deepseek_v3 smollm3 gpt_oss glm4_moe kimi_k2
    """.split()  # noqa: SIM905  # a line each otherwise
)
"""Models after Llama's pattern: gated layers, rotary positions, no biases, no dropout."""
_GATE_FUNCTIONS = frozenset({"silu", "swish", "swiglu", "gelu_pytorch_tanh"})
"""With these and RMS norms, models of other names have gated layers, too."""
_PLAIN = frozenset(
    """
    bloom codegen falcon gpt2 gpt_bigcode gpt_neo gpt_neox gptj mpt opt persimmon phi starcoder2
    """.split()  # noqa: SIM905
)
_ENCODERS = frozenset(
    """
    albert bert camembert deberta deberta-v2 distilbert electra modernbert mpnet roberta xlm-roberta
    """.split()  # noqa: SIM905
)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_PRECISIONS: dict[str, Precision] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def read_config(path: Path, dimensions: Mapping[str, int] | None = None) -> Workload:
    """The workload in a `config.json`; `dimensions` may have the length `sequence`."""
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise InputError(f"{path} has {size:,} bytes", f"at most {MAX_BYTES:,}")
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON file", str(error)[:200]) from None
    name = path.parent.name if path.stem == "config" and path.parent.name else path.stem
    return from_config(config, name, str(path), dimensions)


def from_config(
    config: Any, name: str, source: str, dimensions: Mapping[str, int] | None = None
) -> Workload:
    """The workload in a parsed configuration. Raises InputError for models that a transformer's
    sizes do not describe; what they describe only nearly is named in the workload's warnings."""
    if not isinstance(config, dict):
        raise InputError(f"{source}: not a configuration", "send the object in a config.json")
    sizes = _ConfigSizes(config, source)
    fields = sizes.fields(dict(dimensions or {}))
    try:
        transformer = Transformer.model_validate(fields)
    except ValidationError as error:
        raise InputError(f"{source}: {'; '.join(explain(error))}") from None
    plain = "".join(c if c.isalnum() or c in "._-" else "-" for c in name.lower()).strip("-._")
    dtype = config.get("torch_dtype") or config.get("dtype")
    return Workload(
        name=plain[:64] or "transformer",
        title=str(config.get("_name_or_path") or name)[:200],
        transformer=transformer,
        dataset=Dataset(
            name="declared: set --samples",
            samples=1_000_000,
            input_elements=transformer.sequence,
        ),
        optimizer="adam",
        precision=_PRECISIONS.get(str(dtype), "fp32"),
        warnings=tuple(sizes.warnings),
        sources={"transformer": source},
    )


class _ConfigSizes:
    """Reads sizes by any of their names, and collects what the description cannot express."""

    def __init__(self, config: dict[str, Any], source: str) -> None:
        self.config = config
        self.source = source
        self.warnings: list[str] = []
        self.kind = str(config.get("model_type", ""))[:64]
        if isinstance(text_config := config.get("text_config"), dict):
            self.config = text_config
            self.kind = str(text_config.get("model_type", self.kind))[:64]
            self.warnings.append("only the text model of the file is counted")

    def fields(self, dimensions: dict[str, int]) -> dict[str, Any]:
        """Fields of a `Transformer`."""
        config = self.config
        if config.get("is_encoder_decoder"):
            self._refuse("an encoder-decoder model")
        if "patch_size" in config or "image_size" in config:
            self._refuse("a vision model")
        fields: dict[str, Any] = {
            field: self._required(field) for field in ("hidden", "layers", "heads", "vocabulary")
        }
        hidden, heads = fields["hidden"], fields["heads"]
        fields["feed_forward"] = self._size("feed_forward") or hidden * self._number(
            "expansion_ratio", default=4
        )
        fields["sequence"] = self._sequence(dimensions)
        is_gated = self.kind in _GATED or (
            "rms_norm_eps" in config and str(config.get("hidden_act")).lower() in _GATE_FUNCTIONS
        )
        if self.kind not in _GATED | _PLAIN | _ENCODERS:
            self.warnings.append(
                f"model_type {self.kind or 'is missing'}{' is unknown' * bool(self.kind)}: counted"
                f" as a transformer with {'gated' if is_gated else 'plain'} layers; compare the"
                " number of parameters"
            )
        fields |= {
            "gated": is_gated,
            "biases": not is_gated,
            "dropout": not is_gated,
            "norm": "rms" if "rms_norm_eps" in config else "layer",
            "attention": "flash-2",  # the library's models take PyTorch's fused attention
            "causal": self.kind not in _ENCODERS,
            "tied": config.get("tie_word_embeddings") is not False,
            "key_value_heads": self._key_value_heads(heads),
        }
        if "head_dim" in config:
            fields["head_width"] = self._number("head_dim", default=hidden // heads or 1)
        if config.get("sliding_window") and config.get("use_sliding_window", True):
            window = self._number("sliding_window", default=1)
            blocks = self._window_layers(fields["layers"])
            if window < fields["sequence"] and blocks:
                fields |= {"window": window, "window_layers": blocks}
        self._positions(fields)
        self._experts(fields)
        return fields

    def _window_layers(self, layers: int) -> int:
        """Blocks with the sliding window: those that the file lists, else all but each Nth."""
        kinds = self.config.get("layer_types")
        if isinstance(kinds, list):
            return min(kinds.count("sliding_attention"), layers)
        pattern = self._number("sliding_window_pattern", default=0)
        return layers - layers // pattern if pattern else layers

    def _key_value_heads(self, heads: int) -> int:
        if self.config.get("multi_query") is True and "num_kv_heads" not in self.config:
            return 1
        return self._number("num_key_value_heads", "num_kv_heads", default=heads)

    def _sequence(self, dimensions: dict[str, int]) -> int:
        longest = self._size("positions")
        sequence = dimensions.pop("sequence", None)
        if dimensions:
            unknown = ", ".join(sorted(dimensions))[:200]
            raise InputError(f"{self.source}: no dimension {unknown}", "it has one: sequence")
        if sequence is None and longest is None:
            raise InputError(
                f"{self.source}: the file does not say how long a sequence is",
                "give it: --dimension sequence=2048",
            )
        if sequence is None:
            sequence = longest
            self.warnings.append(
                f"sequences have {longest} tokens, the most that the file allows:"
                " set --dimension sequence=N"
            )
        return int(sequence or 1)

    def _positions(self, fields: dict[str, Any]) -> None:
        attention = self.config.get("attn_config")
        nested = attention if isinstance(attention, dict) else {}
        if self.kind == "bloom" or self.config.get("alibi") or nested.get("alibi"):
            encoding = "alibi"
        elif any(self.config.get(key) is not None for key in _ROTARY) or self.kind in _GATED:
            encoding = "rotary"
        else:
            table = self._size("positions") or fields["sequence"]
            fields["positions"] = table + self._number("type_vocab_size", default=0)
            return
        fields["positions"] = 0
        fields["position_encoding"] = encoding

    def _experts(self, fields: dict[str, Any]) -> None:
        count = self._number(*_EXPERTS, default=0)
        if count > 1:
            width = self._number("moe_intermediate_size", default=fields["feed_forward"])
            fields["experts"] = {
                "count": count,
                "active": self._number("num_experts_per_tok", "moe_top_k", default=1),
                "width": width,
                "shared_width": self._number("shared_expert_intermediate_size", default=0)
                or width * self._number("n_shared_experts", default=0),
                "layers": fields["layers"] - self._number("first_k_dense_replace", default=0),
            }
        if "kv_lora_rank" in self.config:
            fields["latent"] = {
                "query_rank": self._number("q_lora_rank", default=0),
                "key_value_rank": self._number("kv_lora_rank", default=1),
                "plain_width": self._number("qk_nope_head_dim", default=1),
                "position_width": self._number("qk_rope_head_dim", default=1),
                "value_width": self._number("v_head_dim", default=1),
            }

    def _refuse(self, what: str) -> None:
        raise InputError(
            f"{self.source}: {what} ({self.kind or 'no model_type'}) cannot be read from a"
            " configuration yet",
            "send an ONNX file, or describe the layers",
        )

    def _required(self, field: str) -> int:
        value = self._size(field)
        if value is None:
            raise InputError(
                f"{self.source}: no {' or '.join(_NAMES[field])}",
                "is it the config.json of a transformer?",
            )
        return value

    def _size(self, field: str) -> int | None:
        return self._number(*_NAMES[field], default=0) or None

    def _number(self, *names: str, default: int) -> int:
        """The first of these that the file has. Raises InputError unless it is a usable size."""
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**9:
                raise InputError(f"{self.source}: {name} is {str(value)[:50]!r}", "give a number")
            return value
        return default
