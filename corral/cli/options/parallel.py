"""Options: requests side by side."""

from __future__ import annotations

from corral.cli.options.option import Option

OPTIONS = (
    Option(
        ("-np", "--parallel"),
        "slots: requests that run at the same time",
        env="LLAMA_ARG_N_PARALLEL",
        limits=(1, 256),
        target="engine.n_parallel",
    ),
    Option(
        ("-cb", "--cont-batching"),
        "prompts are evaluated while answers are written; without it they wait until none is",
        negative=("-nocb", "--no-cont-batching"),
    ),
    Option(
        ("-kvu", "--kv-unified"),
        "one KV buffer for all slots instead of one each",
        negative=("-no-kvu", "--no-kv-unified"),
    ),
    Option(
        ("--max-itl-ms",),
        "longest pause a running stream may see while prompts are evaluated",
        "MS",
        limits=(1, None),
    ),
)
