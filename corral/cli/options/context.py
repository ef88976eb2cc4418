"""Options: context hacking."""

from __future__ import annotations

from corral.cli.options.option import Option

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

OPTIONS = (
    Option(
        ("--rope-scaling",),
        "RoPE scaling method (default: the model's, else linear)",
        env="LLAMA_ARG_ROPE_SCALING_TYPE",
        choices=("none", "linear", "yarn"),
    ),
    Option(
        ("--rope-scale",),
        "RoPE context scaling factor, expands the context by N (default: the model's)",
        limits=(1e-3, 1e3),
    ),
    Option(("--rope-freq-base",), "RoPE base frequency (default: the model's)", limits=(0, 1e12)),
    Option(
        ("--rope-freq-scale",),
        "RoPE frequency scaling factor, expands the context by 1/N (default: the model's)",
        limits=(0, 1e3),
    ),
    Option(
        ("--yarn-orig-ctx",),
        "YaRN: original context size of the model; 0: the model's training context",
        limits=(0, None),
    ),
    Option(
        ("--yarn-ext-factor",),
        "YaRN: extrapolation mix factor, 0: full interpolation (default: the model's)",
        limits=(None, 1e3),
    ),
    Option(("--yarn-attn-factor",), "YaRN: attention scaling (default: the model's)", limits=(None, 1e3)),
    Option(
        ("--yarn-beta-slow",),
        "YaRN: high correction dimension (default: the model's)",
        limits=(None, 1e6),
    ),
    Option(
        ("--yarn-beta-fast",),
        "YaRN: low correction dimension (default: the model's)",
        limits=(None, 1e6),
    ),
    Option(
        ("-gan", "--grp-attn-n"),
        "self-extend: group attention factor, positions of old tokens advance once in N tokens; 1: off",
        limits=(1, 1024),
    ),
    Option(
        ("-gaw", "--grp-attn-w"),
        "self-extend: group attention width, a multiple of --grp-attn-n",
        limits=(8, None),
    ),
    Option(
        ("-kvo", "--kv-offload"),
        "keep the KV cache on the device of each layer; --no-kv-offload keeps it in host memory",
        negative=("-nkvo", "--no-kv-offload"),
    ),
    Option(("-ctk", "--cache-type-k"), "type of the K cache", "TYPE", choices=CACHE_TYPES),
    Option(
        ("-ctv", "--cache-type-v"),
        "type of the V cache; a quantized type requires flash attention, and enables it",
        "TYPE",
        choices=CACHE_TYPES,
    ),
)
