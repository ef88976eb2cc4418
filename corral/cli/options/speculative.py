"""Options: speculative decoding."""

from __future__ import annotations

from corral.cli.options import value
from corral.cli.options.option import Option, PathUse, param_option

OPTIONS = (
    Option(
        ("--lookup",),
        "speculative decoding from the text so far: faster if an answer repeats its prompt",
        negative=("--no-lookup",),
    ),
    Option(
        ("-lcs", "--lookup-cache-static"),
        "static n-gram cache for speculative decoding (read-only)",
        path=PathUse.DATA,
    ),
    Option(
        ("-lcd", "--lookup-cache-dynamic"),
        "dynamic n-gram cache for speculative decoding, learned from all requests and saved",
        path=PathUse.OUTPUT,
    ),
    param_option("speculative_n_max", env="LLAMA_ARG_DRAFT_MAX"),
    param_option("speculative_n_min", env="LLAMA_ARG_DRAFT_MIN"),
    param_option("speculative_p_min", "P", env="LLAMA_ARG_DRAFT_P_MIN"),
    Option(
        ("-ps", "--p-split", "--draft-p-split", "--spec-draft-p-split"),
        "end a draft of the draft model where the second-best token reaches this probability; 1: off",
        "P",
        env="LLAMA_ARG_DRAFT_P_SPLIT",
        limits=(0, 1),
        target="engine.p_split",
    ),
    Option(
        ("-td", "--threads-draft", "--spec-draft-threads"),
        "threads of the draft model for generation; 0: same as --threads",
        env="LLAMA_ARG_THREADS_DRAFT",
        limits=(-1, 1024),
        target="engine.n_threads_draft",
    ),
    Option(
        ("-tbd", "--threads-batch-draft", "--spec-draft-threads-batch"),
        "threads of the draft model for prompts; 0: same as --threads-draft",
        env="LLAMA_ARG_THREADS_BATCH_DRAFT",
        limits=(-1, 1024),
        target="engine.n_threads_batch_draft",
    ),
    Option(
        ("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"),
        "layers of the draft model to offload to a GPU; all, auto or -1: as many as libllama can",
        "N",
        env="LLAMA_ARG_N_GPU_LAYERS_DRAFT",
        parse=value.layers,
        repeats=False,
        target="engine.n_gpu_layers_draft",
    ),
    Option(
        ("--draft-exact",),
        "on a CPU, evaluate drafts only where the rounding equals that of single tokens: answers do "
        "not change",
        negative=("--no-draft-exact",),
    ),
)
