"""Options: general."""

from __future__ import annotations

from corral.cli.options import value
from corral.cli.options.option import Option, PathUse, param_option

OPTIONS = (
    Option(
        ("-h", "--usage", "--help"),
        "command.help",
        "print this and exit; all: also the options that are accepted for compatibility and ignored",
        choices=("all",),
        bare="",
    ),
    Option(("--version",), "command.version", "print the version and exit"),
    Option(
        ("--print-config",),
        "command.print_config",
        "print every value and where it came from, as TOML, and exit",
    ),
    Option(
        ("--config",),
        "command.config",
        "TOML file of options by their long names, as ctx-size = 4096; environment and command line win",
        "FILE",
        path=PathUse.TEXT,
    ),
    Option(
        ("--completion-bash",),
        "command.completion_bash",
        "print a script that completes options in bash, and exit; others: corral completion -h",
    ),
    Option(
        ("-v", "--verbose"),
        "server.verbosity",
        "log everything, also what libllama says: --verbosity 4",
        n_args=0,
        bare=4,
    ),
    Option(
        ("-lv", "--log-verbosity", "--verbosity"),
        "server.verbosity",
        "how much to log; 0: nothing, 1: errors, 2: warnings, 3: what happens, 4: everything",
        env="LLAMA_ARG_LOG_VERBOSITY",
        limits=(0, 5),
    ),
    param_option("seed", "SEED", parse=value.seed, repeats=False, shown=-1),
    Option(
        ("-t", "--threads"),
        "engine.n_threads",
        "threads for generation; 0: one per physical core",
        limits=(-1, 1024),
    ),
    Option(
        ("-tb", "--threads-batch"),
        "engine.n_threads_batch",
        "threads for prompts; 0: as --threads",
        limits=(-1, 1024),
    ),
    Option(
        ("-c", "--ctx-size"),
        "engine.n_ctx",
        "context size, shared by all slots; 0: as the model was trained",
        limits=(0, None),
    ),
    param_option("n_predict"),
    Option(
        ("-b", "--batch-size"),
        "engine.n_batch",
        "logical maximum batch size",
        env="LLAMA_ARG_BATCH",
        limits=(1, 1 << 20),
    ),
    Option(
        ("-ub", "--ubatch-size"),
        "engine.n_ubatch",
        "physical maximum batch size: prompt tokens evaluated at once",
        env="LLAMA_ARG_UBATCH",
        limits=(16, 1 << 20),
    ),
    param_option("n_keep"),
    Option(
        ("--context-shift",),
        "engine.context_shift",
        "forget old tokens when a context is full, instead of stopping",
        negative=("--no-context-shift",),
    ),
    Option(
        ("-fa", "--flash-attn"),
        "engine.flash_attn",
        "flash attention; auto: on a GPU only, since on a CPU answers would depend on their neighbours",
        choices=("on", "off", "auto"),
        bare="on",
    ),
    Option(("--warmup",), "engine.warmup", "run the model once before serving", negative=("--no-warmup",)),
    Option(
        ("-e", "--escape"),
        "server.escape",
        "backslashes mean something in --reverse-prompt, --cfg-negative-prompt and --dry-sequence-breaker",
        negative=("--no-escape",),
    ),
    Option(
        ("-r", "--reverse-prompt"),
        "server.stop",
        "text at which answers stop unless a request brings its own; may be repeated",
        "PROMPT",
        parse=value.text,
    ),
    Option(
        ("-sp", "--special"),
        "server.special",
        "control tokens appear in answers as text",
        negative=("--no-special",),
    ),
    Option(("--spm-infill",), "server.spm_infill", "infill with the suffix first, as some models prefer"),
)
