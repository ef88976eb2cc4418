"""Options: general, and logging."""

from __future__ import annotations

from corral.cli.options import value
from corral.cli.options.option import Option, PathUse, param_option

OPTIONS = (
    Option(
        ("-h", "--usage", "--help"),
        "print this help and exit; all: include options that are accepted for compatibility and ignored",
        choices=("all",),
        bare="",
        target="command.help",
    ),
    Option(("--version",), "print the version and exit", target="command.version"),
    Option(
        ("--print-config",),
        "print every option's value and its origin as TOML, and exit",
        target="command.print_config",
    ),
    Option(
        ("--config",),
        "TOML file of options by their long names, such as ctx-size = 4096; environment and command "
        "line override it",
        "FILE",
        path=PathUse.TEXT,
        target="command.config",
    ),
    Option(
        ("--completion-bash",),
        "print a completion script for bash and exit; other shells: corral completion -h",
        target="command.completion_bash",
    ),
    Option(
        ("-v", "--log-verbose", "--verbose"),
        "log everything, including libllama's messages: --verbosity 4",
        n_args=0,
        bare=4,
        target="server.verbosity",
    ),
    Option(
        ("-lv", "--log-verbosity", "--verbosity"),
        "log level; 0: nothing, 1: errors, 2: warnings, 3: info, 4: debug",
        env="LLAMA_ARG_LOG_VERBOSITY",
        limits=(0, 5),
    ),
    param_option("seed", "SEED", parse=value.seed, repeats=False, shown=-1),
    Option(
        ("-t", "--threads"),
        "threads for generation; 0: one per physical core",
        limits=(-1, 1024),
        target="engine.n_threads",
    ),
    Option(
        ("-tb", "--threads-batch"),
        "threads for prompts; 0: same as --threads",
        limits=(-1, 1024),
        target="engine.n_threads_batch",
    ),
    Option(
        ("-c", "--ctx-size"),
        "context size, shared by all slots; 0: the model's training context",
        limits=(0, None),
        target="engine.n_ctx",
    ),
    param_option("n_predict"),
    Option(
        ("-b", "--batch-size"),
        "logical maximum batch size",
        env="LLAMA_ARG_BATCH",
        limits=(1, 1 << 20),
        target="engine.n_batch",
    ),
    Option(
        ("-ub", "--ubatch-size"),
        "physical maximum batch size: prompt tokens evaluated together",
        env="LLAMA_ARG_UBATCH",
        limits=(16, 1 << 20),
        target="engine.n_ubatch",
    ),
    param_option("n_keep"),
    Option(
        ("--context-shift",),
        "discard old tokens when a context is full, instead of stopping",
        negative=("--no-context-shift",),
    ),
    Option(
        ("-fa", "--flash-attn"),
        "flash attention; auto: on GPUs, and on CPUs where it is faster, but not with --batch-exact on",
        choices=("on", "off", "auto"),
        bare="on",
    ),
    Option(("--warmup",), "warm up the model with an empty run before serving", negative=("--no-warmup",)),
    Option(
        ("-e", "--escape"),
        "process escape sequences such as \\n in --reverse-prompt, --cfg-negative-prompt and "
        "--dry-sequence-breaker",
        negative=("--no-escape",),
    ),
    Option(
        ("-r", "--reverse-prompt"),
        "stop string for requests without their own; may be repeated",
        "PROMPT",
        parse=value.text,
        target="server.stop",
    ),
    Option(("-sp", "--special"), "include control tokens in answers as text", negative=("--no-special",)),
    Option(("--spm-infill",), "use the Suffix/Prefix/Middle pattern for infill, as some models prefer"),
)

LOGGING = (
    Option(
        ("--log-enable",), "write the log to --log-file", negative=("--log-disable",), target="server.log"
    ),
    Option(
        ("--log-file",),
        "log file, besides stderr; a name without an extension gets .log",
        path=PathUse.OUTPUT,
    ),
    Option(("--log-prompts",), "log prompts and answers too"),
    Option(("--log-new",), "start a new log file at every start: NAME.ID.log"),
    Option(("--log-append",), "append to the log file instead of truncating it"),
)
