"""Options: scheduling."""

from __future__ import annotations

from corral.cli.options.option import Option

OPTIONS = (
    Option(
        ("--max-itl-ms",),
        "engine.max_itl_ms",
        "longest pause a running stream may see while prompts are evaluated",
        "MS",
        "LLAMA_ARG_MAX_ITL_MS",
        low=1,
    ),
    Option(
        ("-kvu", "--kv-unified"),
        "engine.kv_unified",
        "one KV buffer for all slots instead of one each",
        env="LLAMA_ARG_KV_UNIFIED",
        negative=("-no-kvu", "--no-kv-unified"),
    ),
    Option(
        ("-sps", "--slot-prompt-similarity"),
        "engine.slot_prompt_similarity",
        "share of a prompt an idle slot must hold to be preferred; 0: off",
        "SHARE",
        "LLAMA_ARG_SLOT_PROMPT_SIMILARITY",
        low=0,
        high=1,
    ),
    Option(
        ("--context-shift",),
        "engine.context_shift",
        "forget old tokens when a context is full, instead of stopping",
        env="LLAMA_ARG_CONTEXT_SHIFT",
        negative=("--no-context-shift",),
    ),
    Option(
        ("-n", "--predict", "--n-predict"),
        "server.n_predict",
        "tokens to generate unless a request says so; -1: no limit, -2: until the context is full",
        "N",
        "LLAMA_ARG_N_PREDICT",
        low=-2,
    ),
    Option(
        ("--keep",),
        "server.n_keep",
        "prompt tokens that survive a context shift unless a request says so; -1: all",
        "N",
        "LLAMA_ARG_KEEP",
        low=-1,
    ),
    Option(
        ("--temp",),
        "server.temperature",
        "temperature unless a request says so",
        "T",
        "LLAMA_ARG_TEMP",
        low=0,
        high=1e6,
    ),
    Option(
        ("-s", "--seed"),
        "server.seed",
        "seed unless a request says so; -1: random",
        "SEED",
        "LLAMA_ARG_SEED",
        low=-1,
        high=2**32 - 1,
    ),
)
