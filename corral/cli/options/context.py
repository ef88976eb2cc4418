"""Options: context hacking."""

from __future__ import annotations

from corral.cli.options.option import Option

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

OPTIONS = (
    Option(
        ("--rope-scaling",),
        "engine.rope_scaling",
        "how positions are scaled (default: as the model says, else linear)",
        env="LLAMA_ARG_ROPE_SCALING_TYPE",
        choices=("none", "linear", "yarn"),
    ),
    Option(
        ("--rope-scale",),
        "engine.rope_scale",
        "the context is that many times as long as trained (default: as the model says)",
        limits=(1e-3, 1e3),
    ),
    Option(
        ("--rope-freq-base",),
        "engine.rope_freq_base",
        "base frequency of positions (default: as the model says)",
        limits=(0, 1e12),
    ),
    Option(
        ("--rope-freq-scale",),
        "engine.rope_freq_scale",
        "the same as 1/N in --rope-scale (default: as the model says)",
        limits=(0, 1e3),
    ),
    Option(
        ("--yarn-orig-ctx",),
        "engine.yarn_orig_ctx",
        "YaRN: context size the model was trained with; 0: as it says",
        limits=(0, None),
    ),
    Option(
        ("--yarn-ext-factor",),
        "engine.yarn_ext_factor",
        "YaRN: share of extrapolation, 0: only interpolation (default: as the model says)",
        limits=(None, 1e3),
    ),
    Option(
        ("--yarn-attn-factor",),
        "engine.yarn_attn_factor",
        "YaRN: scale of attention (default: as the model says)",
        limits=(None, 1e3),
    ),
    Option(
        ("--yarn-beta-slow",),
        "engine.yarn_beta_slow",
        "YaRN: high correction dimension (default: as the model says)",
        limits=(None, 1e6),
    ),
    Option(
        ("--yarn-beta-fast",),
        "engine.yarn_beta_fast",
        "YaRN: low correction dimension (default: as the model says)",
        limits=(None, 1e6),
    ),
    Option(
        ("-gan", "--grp-attn-n"),
        "engine.grp_attn_n",
        "self-extend: positions of old tokens advance once in so many; 1: off",
        limits=(1, 1024),
    ),
    Option(
        ("-gaw", "--grp-attn-w"),
        "engine.grp_attn_w",
        "self-extend: tokens that are grouped at once, a multiple of --grp-attn-n",
        limits=(8, None),
    ),
    Option(
        ("-kvo", "--kv-offload"),
        "engine.kv_offload",
        "the KV cache is where the layers are, on a GPU",
        negative=("-nkvo", "--no-kv-offload"),
    ),
    Option(
        ("-ctk", "--cache-type-k"),
        "engine.cache_type_k",
        "type of the keys in the KV cache",
        "TYPE",
        choices=CACHE_TYPES,
    ),
    Option(
        ("-ctv", "--cache-type-v"),
        "engine.cache_type_v",
        "type of the values in the KV cache; a quantized one needs flash attention, and turns it on",
        "TYPE",
        choices=CACHE_TYPES,
    ),
)
