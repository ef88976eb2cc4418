"""Options of today's llama-server that mean nothing here, or that Corral cannot honour.

The first are accepted with a note. The others are refused with the reason, because the server would not do
what they ask for.
"""

from __future__ import annotations

from typing import Any

from corral.cli.options.option import Option
from corral.core.params import DRAFT_KINDS

_SCHEDULING = "the operating system places threads; use taskset, numactl or nice for the whole server"
_CHOSEN = "Corral chooses it"
_DRAFTS = "lookup drafts adapt their length by themselves; --lookup, --draft and -md select them"
_DRAFT_MODEL = "Corral places a draft model by itself; -md and --threads-draft apply to it"
_NO_TOOLS = "Corral runs only tools of MCP servers: see --mcp-servers-config and --ui-mcp-origins"
_PRESETS = "there are no presets; name the model with -hf"


def _noted(names: tuple[str, ...], help: str, note: str, metavar: str = "", **more: Any) -> Option:
    return Option(names, help, metavar, target="", note=note, n_args=1 if metavar else 0, **more)


def _refused(names: tuple[str, ...], help: str, refusal: str, metavar: str = "", **more: Any) -> Option:
    return Option(names, help, metavar, target="", refusal=refusal, n_args=1 if metavar else 0, **more)


def _draft_kinds(args: list[str]) -> str:
    """Check the kinds of drafts; those that need other parts of a model are refused."""
    for kind in args[0].split(","):
        if kind not in DRAFT_KINDS:
            raise ValueError(f"'{kind}' is not available; choose from {', '.join(DRAFT_KINDS)}")
    return args[0]


_THREADS = tuple(
    _noted(names, help, _SCHEDULING, metavar)
    for names, help, metavar in (
        (("-C", "--cpu-mask"), "CPU affinity mask", "M"),
        (("-Cr", "--cpu-range"), "CPU range for affinity", "LO-HI"),
        (("--cpu-strict",), "strict CPU placement", "0|1"),
        (("--prio",), "priority of threads", "N"),
        (("--poll",), "polling level of threads", "0..100"),
        (("-Cb", "--cpu-mask-batch"), "CPU affinity mask for prompts", "M"),
        (("-Crb", "--cpu-range-batch"), "CPU range for prompts", "LO-HI"),
        (("--cpu-strict-batch",), "strict CPU placement for prompts", "0|1"),
        (("--prio-batch",), "priority of threads for prompts", "N"),
        (("--poll-batch",), "polling of threads for prompts", "0|1"),
        (("-Cd", "--cpu-mask-draft", "--spec-draft-cpu-mask"), "CPU affinity mask of the draft model", "M"),
        (("-Crd", "--cpu-range-draft", "--spec-draft-cpu-range"), "CPU range of the draft model", "LO-HI"),
        (("--cpu-strict-draft", "--spec-draft-cpu-strict"), "strict CPU placement of the draft model", "0|1"),
        (("--prio-draft", "--spec-draft-prio"), "priority of the draft model's threads", "N"),
        (("--poll-draft", "--spec-draft-poll"), "polling of the draft model's threads", "0|1"),
        (
            ("-Cbd", "--cpu-mask-batch-draft", "--spec-draft-cpu-mask-batch"),
            "CPU affinity mask of the draft model for prompts",
            "M",
        ),
        (
            ("--cpu-strict-batch-draft", "--spec-draft-cpu-strict-batch"),
            "strict CPU placement of the draft model for prompts",
            "0|1",
        ),
        (("--prio-batch-draft", "--spec-draft-prio-batch"), "priority of the draft model for prompts", "N"),
        (("--poll-batch-draft", "--spec-draft-poll-batch"), "polling of the draft model for prompts", "0|1"),
    )
)

_NGRAMS = tuple(
    _noted((f"--spec-ngram-{name}",), "length or count of an n-gram draft", _DRAFTS, "N")
    for name in (
        *("mod-n-min", "mod-n-max", "mod-n-match", "size-n", "size-m", "min-hits"),
        *(
            f"{kind}-{size}"
            for kind in ("simple", "map-k", "map-k4v")
            for size in ("size-n", "size-m", "min-hits")
        ),
    )
)

SPECULATIVE = (
    Option(
        ("--spec-type",),
        "kinds of drafts",
        "KIND,...",
        target="",
        note=_DRAFTS,
        parse=_draft_kinds,
    ),
    _noted(("--spec-default",), "default drafts", "lookup is on by default"),
    *_NGRAMS,
    _noted(
        ("--spec-draft-backend-sampling",),
        "sample drafts on the device",
        _CHOSEN,
        negative=("--no-spec-draft-backend-sampling",),
    ),
    _noted(
        ("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"), "K cache of the draft", _DRAFT_MODEL, "TYPE"
    ),
    _noted(
        ("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"), "V cache of the draft", _DRAFT_MODEL, "TYPE"
    ),
    _refused(
        ("-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"),
        "draft model on the hub",
        "start corral -hf REPO once, which downloads it, and name the file that corral models lists with -md",
        "REPO",
    ),
    _refused(
        ("-devd", "--device-draft", "--spec-draft-device"), "devices of the draft", _DRAFT_MODEL, "DEV,..."
    ),
    _refused(
        ("-otd", "--override-tensor-draft", "--spec-draft-override-tensor"),
        "buffers of the draft model's tensors",
        _DRAFT_MODEL,
        "PATTERN=TYPE,...",
    ),
    _refused(
        ("-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe"), "experts of the draft in RAM", _DRAFT_MODEL
    ),
    _refused(
        ("-ncmoed", "--n-cpu-moe-draft", "--spec-draft-ncmoe", "--spec-draft-n-cpu-moe"),
        "layers of the draft whose experts are in RAM",
        _DRAFT_MODEL,
        "N",
    ),
    _refused(("--spec-synth-len",), "accept drafts at random", "answers would be wrong", "L"),
    _refused(("--spec-synth-rates",), "accept drafts at random", "answers would be wrong", "P0,P1,..."),
)

GENERAL = (
    *_THREADS,
    _noted(
        ("--perf",), "time of libllama's own counters", "timings are always measured", negative=("--no-perf",)
    ),
    _refused(("-cl", "--cache-list"), "list cached models", "use the command: corral models list"),
    *SPECULATIVE,
)

SAMPLING = (_noted(("-bs", "--backend-sampling"), "sample on the device", "samplers run on the CPU"),)

BACKEND = (
    _noted(("--repack",), "weights in a layout for this CPU", _CHOSEN, negative=("-nr", "--no-repack")),
    _refused(("-lm", "--load-mode"), "how to load the file", "use --mlock, --no-mmap or neither", "MODE"),
    _noted(("-lzm", "--lazy-mode"), "load weights when they are used", _CHOSEN, "MODE"),
    _refused(("-ncffn", "--n-cpu-ffn"), "layers whose FFN is in RAM", "use -ngl to place layers", "N"),
)

PARALLEL = (
    _noted(("--kv-unified-per-slot",), "tokens per slot of a unified KV cache", "slots share it freely", "N"),
    _noted(
        ("--cache-idle-slots",),
        "keep the tokens of idle slots",
        "idle slots keep their tokens",
        negative=("--no-cache-idle-slots",),
    ),
)

MEDIA = (
    _refused(
        ("-mmdev", "--mmproj-device"), "device of the projector", "it runs where the model runs", "DEVICE"
    ),
    _noted(("--mtmd-batch-max-tokens",), "tokens of media in a batch", _CHOSEN, "N"),
    _noted(("--video-fps",), "frames per second of videos", "videos are refused", "N"),
    _noted(("--video-timestamp-interval",), "timestamps in videos", "videos are refused", "N"),
    _noted(("--video-ffmpeg-dir",), "directory of ffmpeg", "videos are refused", "DIR"),
)

MODEL = (
    _refused(("-dr", "--docker-repo"), "model in a Docker registry", "download it and use -m", "REPO"),
    *(
        _refused((name,), "a preset of llama-server", _PRESETS)
        for name in (
            *("--embd-gemma-default", "--fim-qwen-1.5b-default", "--fim-qwen-3b-default"),
            *("--fim-qwen-7b-default", "--fim-qwen-7b-spec", "--fim-qwen-14b-spec", "--fim-qwen-30b-default"),
            *("--gpt-oss-20b-default", "--gpt-oss-120b-default"),
            *("--vision-gemma-4b-default", "--vision-gemma-12b-default"),
        )
    ),
)

SERVER = (
    _refused(
        ("--webui-mcp-proxy", "--ui-mcp-proxy"),
        "proxy for MCP servers",
        _NO_TOOLS,
        negative=("--no-webui-mcp-proxy", "--no-ui-mcp-proxy"),
    ),
    Option(
        ("--tools",),
        "answer `/tools` also without MCP servers, as in llama-server (default: with MCP servers only)",
        "TOOL,...",
        note="there are no built-in tools; /tools has those of MCP servers (--mcp-servers-config)",
    ),
    _refused(("--tools-runtime",), "where tools run", _NO_TOOLS, "OPTION"),
    _refused(("-ag", "--agent"), "run tools in the server", _NO_TOOLS, negative=("-no-ag", "--no-agent")),
    _noted(
        ("--reasoning-preserve",),
        "keep reasoning in later prompts",
        "the chat template decides; set it with --chat-template-kwargs",
        negative=("--no-reasoning-preserve",),
    ),
    _refused(
        ("--skip-chat-parsing",),
        "do not parse answers of chats",
        "use /completion for raw text, or --reasoning-format none",
        negative=("--no-skip-chat-parsing",),
    ),
)

LOGGING = (
    _noted(("--log-jsonl",), "log in JSON", "use --log-format json", negative=("--no-log-jsonl",)),
    _noted(("--log-colors",), "colours in the log", "the log has none", "on|off|auto"),
    _noted(("--log-prefix",), "level in the log", "lines have it always", negative=("--no-log-prefix",)),
    _noted(
        ("--log-timestamps",), "time in the log", "lines have it always", negative=("--no-log-timestamps",)
    ),
    _refused(("--log-prompts-dir",), "directory for prompts", "use --log-prompts", "PATH"),
)
