"""Options: requests side by side."""

from __future__ import annotations

from corral.cli.options.option import Option

OPTIONS = (
    Option(
        ("-np", "--parallel"),
        "engine.n_parallel",
        "slots: requests that run at the same time",
        env="LLAMA_ARG_N_PARALLEL",
        limits=(1, 256),
    ),
    Option(
        ("-cb", "--cont-batching"),
        "engine.cont_batching",
        "prompts are evaluated while answers are written; without it they wait until none is",
        negative=("-nocb", "--no-cont-batching"),
    ),
    Option(
        ("-kvu", "--kv-unified"),
        "engine.kv_unified",
        "one KV buffer for all slots instead of one each",
        negative=("-no-kvu", "--no-kv-unified"),
    ),
    Option(
        ("--max-itl-ms",),
        "engine.max_itl_ms",
        "longest pause a running stream may see while prompts are evaluated",
        "MS",
        limits=(1, None),
    ),
)
