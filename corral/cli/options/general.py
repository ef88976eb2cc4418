"""Options: general, and logging."""

from __future__ import annotations

from corral.cli.options import value
from corral.cli.options.option import Option, PathUse, param_option

OPTIONS = (
    Option(
        ("-h", "--usage", "--help"),
        "print this and exit; all: also the options that are accepted for compatibility and ignored",
        choices=("all",),
        bare="",
        target="command.help",
    ),
    Option(("--version",), "print the version and exit", target="command.version"),
    Option(
        ("--print-config",),
        "print every value and where it came from, as TOML, and exit",
        target="command.print_config",
    ),
    Option(
        ("--config",),
        "TOML file of options by their long names, as ctx-size = 4096; environment and command line win",
        "FILE",
        path=PathUse.TEXT,
        target="command.config",
    ),
    Option(
        ("--completion-bash",),
        "print a script that completes options in bash, and exit; others: corral completion -h",
        target="command.completion_bash",
    ),
    Option(
        ("-v", "--verbose"),
        "log everything, also what libllama says: --verbosity 4",
        n_args=0,
        bare=4,
        target="server.verbosity",
    ),
    Option(
        ("-lv", "--log-verbosity", "--verbosity"),
        "how much to log; 0: nothing, 1: errors, 2: warnings, 3: what happens, 4: everything",
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
        "threads for prompts; 0: as --threads",
        limits=(-1, 1024),
        target="engine.n_threads_batch",
    ),
    Option(
        ("-c", "--ctx-size"),
        "context size, shared by all slots; 0: as the model was trained",
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
        "physical maximum batch size: prompt tokens evaluated at once",
        env="LLAMA_ARG_UBATCH",
        limits=(16, 1 << 20),
        target="engine.n_ubatch",
    ),
    param_option("n_keep"),
    Option(
        ("--context-shift",),
        "forget old tokens when a context is full, instead of stopping",
        negative=("--no-context-shift",),
    ),
    Option(
        ("-fa", "--flash-attn"),
        "flash attention; auto: on a GPU only, since on a CPU answers would depend on their neighbours",
        choices=("on", "off", "auto"),
        bare="on",
    ),
    Option(("--warmup",), "run the model once before serving", negative=("--no-warmup",)),
    Option(
        ("-e", "--escape"),
        "backslashes mean something in --reverse-prompt, --cfg-negative-prompt and --dry-sequence-breaker",
        negative=("--no-escape",),
    ),
    Option(
        ("-r", "--reverse-prompt"),
        "text at which answers stop unless a request brings its own; may be repeated",
        "PROMPT",
        parse=value.text,
        target="server.stop",
    ),
    Option(("-sp", "--special"), "control tokens appear in answers as text", negative=("--no-special",)),
    Option(("--spm-infill",), "infill with the suffix first, as some models prefer"),
)

LOGGING = (
    Option(("--log-enable",), "write --log-file", negative=("--log-disable",), target="server.log"),
    Option(
        ("--log-file",),
        "file that gets the log too; a name without an extension gets .log",
        path=PathUse.OUTPUT,
    ),
    Option(("--log-prompts",), "prompts and answers in the log too"),
    Option(("--log-new",), "a new file at every start: NAME.ID.log"),
    Option(("--log-append",), "go on in the old file instead of emptying it"),
)
