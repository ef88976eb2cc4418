"""Options: the model's context, and metadata of its file."""

from __future__ import annotations

from corral.cli.options import word
from corral.cli.options.option import Option

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

OPTIONS = (
    Option(
        ("-ctk", "--cache-type-k"),
        "engine.cache_type_k",
        "type of the keys in the KV cache",
        "TYPE",
        "LLAMA_ARG_CACHE_TYPE_K",
        choices=CACHE_TYPES,
    ),
    Option(
        ("-ctv", "--cache-type-v"),
        "engine.cache_type_v",
        "type of the values in the KV cache; a quantized one needs flash attention, and turns it on",
        "TYPE",
        "LLAMA_ARG_CACHE_TYPE_V",
        choices=CACHE_TYPES,
    ),
    Option(
        ("-dt", "--defrag-thold"),
        "engine.defrag_thold",
        "share of holes at which a KV cache was defragmented; libllama has no such cache any more",
        "N",
        "LLAMA_ARG_DEFRAG_THOLD",
    ),
    Option(
        ("--rope-scaling",),
        "engine.rope_scaling",
        "how positions are scaled (default: as the model says, else linear)",
        "none|linear|yarn",
        "LLAMA_ARG_ROPE_SCALING_TYPE",
        choices=("none", "linear", "yarn"),
    ),
    Option(
        ("--rope-scale",),
        "engine.rope_scale",
        "the context is that many times as long as trained (default: as the model says)",
        "N",
        "LLAMA_ARG_ROPE_SCALE",
        low=1e-3,
        high=1e3,
    ),
    Option(
        ("--rope-freq-base",),
        "engine.rope_freq_base",
        "base frequency of positions (default: as the model says)",
        "N",
        "LLAMA_ARG_ROPE_FREQ_BASE",
        low=0,
        high=1e12,
    ),
    Option(
        ("--rope-freq-scale",),
        "engine.rope_freq_scale",
        "the same as 1/N in --rope-scale (default: as the model says)",
        "N",
        "LLAMA_ARG_ROPE_FREQ_SCALE",
        low=0,
        high=1e3,
    ),
    Option(
        ("--yarn-orig-ctx",),
        "engine.yarn_orig_ctx",
        "YaRN: context size the model was trained with; 0: as it says",
        "N",
        "LLAMA_ARG_YARN_ORIG_CTX",
        low=0,
    ),
    Option(
        ("--yarn-ext-factor",),
        "engine.yarn_ext_factor",
        "YaRN: share of extrapolation, 0: only interpolation (default: as the model says)",
        "N",
        "LLAMA_ARG_YARN_EXT_FACTOR",
        high=1e3,
    ),
    Option(
        ("--yarn-attn-factor",),
        "engine.yarn_attn_factor",
        "YaRN: scale of attention (default: as the model says)",
        "N",
        "LLAMA_ARG_YARN_ATTN_FACTOR",
        high=1e3,
    ),
    Option(
        ("--yarn-beta-slow",),
        "engine.yarn_beta_slow",
        "YaRN: high correction dimension (default: as the model says)",
        "N",
        "LLAMA_ARG_YARN_BETA_SLOW",
        high=1e6,
    ),
    Option(
        ("--yarn-beta-fast",),
        "engine.yarn_beta_fast",
        "YaRN: low correction dimension (default: as the model says)",
        "N",
        "LLAMA_ARG_YARN_BETA_FAST",
        high=1e6,
    ),
    Option(
        ("--override-kv",),
        "engine.overrides",
        "metadata of the model, as if it were in its file: int, float, bool or str; may be repeated",
        "KEY=TYPE:VALUE",
        "LLAMA_ARG_OVERRIDE_KV",
        parse=word.overrides,
    ),
    Option(
        ("--check-tensors",),
        "engine.check_tensors",
        "look for invalid values in the model's weights while loading",
        env="LLAMA_ARG_CHECK_TENSORS",
    ),
)
