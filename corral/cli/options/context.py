"""Options: context hacking."""

from __future__ import annotations

from corral.cli.options.option import Option

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

OPTIONS = (
    Option(
        ("--rope-scaling",),
        "how positions are scaled (default: as the model says, else linear)",
        env="LLAMA_ARG_ROPE_SCALING_TYPE",
        choices=("none", "linear", "yarn"),
    ),
    Option(
        ("--rope-scale",),
        "the context is that many times as long as trained (default: as the model says)",
        limits=(1e-3, 1e3),
    ),
    Option(
        ("--rope-freq-base",), "base frequency of positions (default: as the model says)", limits=(0, 1e12)
    ),
    Option(
        ("--rope-freq-scale",),
        "the same as 1/N in --rope-scale (default: as the model says)",
        limits=(0, 1e3),
    ),
    Option(
        ("--yarn-orig-ctx",), "YaRN: context size the model was trained with; 0: as it says", limits=(0, None)
    ),
    Option(
        ("--yarn-ext-factor",),
        "YaRN: share of extrapolation, 0: only interpolation (default: as the model says)",
        limits=(None, 1e3),
    ),
    Option(
        ("--yarn-attn-factor",), "YaRN: scale of attention (default: as the model says)", limits=(None, 1e3)
    ),
    Option(
        ("--yarn-beta-slow",),
        "YaRN: high correction dimension (default: as the model says)",
        limits=(None, 1e6),
    ),
    Option(
        ("--yarn-beta-fast",),
        "YaRN: low correction dimension (default: as the model says)",
        limits=(None, 1e6),
    ),
    Option(
        ("-gan", "--grp-attn-n"),
        "self-extend: positions of old tokens advance once in N tokens; 1: off",
        limits=(1, 1024),
    ),
    Option(
        ("-gaw", "--grp-attn-w"),
        "self-extend: tokens that are grouped at once, a multiple of --grp-attn-n",
        limits=(8, None),
    ),
    Option(
        ("-kvo", "--kv-offload"),
        "the KV cache is where the layers are, on a GPU",
        negative=("-nkvo", "--no-kv-offload"),
    ),
    Option(("-ctk", "--cache-type-k"), "type of the keys in the KV cache", "TYPE", choices=CACHE_TYPES),
    Option(
        ("-ctv", "--cache-type-v"),
        "type of the values in the KV cache; a quantized one needs flash attention, and turns it on",
        "TYPE",
        choices=CACHE_TYPES,
    ),
)
