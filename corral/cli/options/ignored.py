"""Options of llama.cpp that have no effect here, in one table: a reason, and the options below it.

They are accepted with a note, so that command lines work. A refused one ends the start, because the server
would not do what it asks for.
"""

from __future__ import annotations

from collections.abc import Iterator

from corral.cli.options.option import Option
from corral.core.params import DRAFT_KINDS

_REFUSED = "refused: "
_DRAFTS = "lookup drafts adapt their length by themselves; --lookup, --draft and -md select them"
_DRAFT_MODEL = "Corral places a draft model by itself; -md and --threads-draft apply to it"

# Names and metavar of each option, and after a slash the names that turn it off.
_TABLE = f"""
it is for another program of llama.cpp, or for an older version
    --verbose-prompt, --no-display-prompt, -co --color, --chunks N, -p --prompt PROMPT, -f --file FNAME,
    --in-file FNAME, -bf --binary-file FNAME, -ptc --print-token-count N, --prompt-cache FNAME,
    --prompt-cache-all, --prompt-cache-ro, -cnv --conversation, -i --interactive, -if --interactive-first,
    -mli --multiline-input, --in-prefix-bos, --in-prefix STRING, --in-suffix STRING, -dkvc --dump-kv-cache,
    --all-logits, --hellaswag, --hellaswag-tasks N, --winogrande, --winogrande-tasks N, --multiple-choice,
    --multiple-choice-tasks N, --kl-divergence, --kl-divergence-base FNAME, --ppl-stride N,
    --ppl-output-type 0|1, -ns --sequences N, -dt --defrag-thold N, --image --audio FILE, --simple-io,
    -ld --logdir LOGDIR, --log-test
the operating system places threads; use taskset, numactl or nice for the whole server
    -C --cpu-mask M, -Cr --cpu-range LO-HI, --cpu-strict 0|1, --prio N, --poll 0..100,
    -Cb --cpu-mask-batch M, -Crb --cpu-range-batch LO-HI, --cpu-strict-batch 0|1, --prio-batch N,
    --poll-batch 0|1, -Cd --cpu-mask-draft --spec-draft-cpu-mask M,
    -Crd --cpu-range-draft --spec-draft-cpu-range LO-HI, --cpu-strict-draft --spec-draft-cpu-strict 0|1,
    --prio-draft --spec-draft-prio N, --poll-draft --spec-draft-poll 0|1,
    -Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch M,
    --cpu-strict-batch-draft --spec-draft-cpu-strict-batch 0|1,
    --prio-batch-draft --spec-draft-prio-batch N, --poll-batch-draft --spec-draft-poll-batch 0|1
{_DRAFTS}
    --spec-ngram-mod-n-min N, --spec-ngram-mod-n-max N, --spec-ngram-mod-n-match N, --spec-ngram-size-n N,
    --spec-ngram-size-m N, --spec-ngram-min-hits N, --spec-ngram-simple-size-n N,
    --spec-ngram-simple-size-m N, --spec-ngram-simple-min-hits N, --spec-ngram-map-k-size-n N,
    --spec-ngram-map-k-size-m N, --spec-ngram-map-k-min-hits N, --spec-ngram-map-k4v-size-n N,
    --spec-ngram-map-k4v-size-m N, --spec-ngram-map-k4v-min-hits N
lookup is on by default
    --spec-default
{_DRAFT_MODEL}
    -ctkd --cache-type-k-draft --spec-draft-type-k TYPE,
    -ctvd --cache-type-v-draft --spec-draft-type-v TYPE
Corral chooses it
    --spec-draft-backend-sampling / --no-spec-draft-backend-sampling, --repack / -nr --no-repack,
    -lzm --lazy-mode MODE, --mtmd-batch-max-tokens N
samplers run on the CPU
    -bs --backend-sampling
slots share it freely
    --kv-unified-per-slot N
idle slots keep their tokens
    --cache-idle-slots / --no-cache-idle-slots
videos are refused
    --video-fps N, --video-timestamp-interval N, --video-ffmpeg-dir DIR
the chat template decides; set it with --chat-template-kwargs
    --reasoning-preserve / --no-reasoning-preserve
timings are always measured
    --perf / --no-perf
use --log-format json
    --log-jsonl / --no-log-jsonl
the log has no colours
    --log-colors on|off|auto
lines of the log always have it
    --log-prefix / --no-log-prefix, --log-timestamps / --no-log-timestamps
refused: use the command: corral models list
    -cl --cache-list
refused: start corral -hf REPO once, which downloads it, and name the file that corral models lists with -md
    -hfd -hfrd --hf-repo-draft --spec-draft-hf REPO
refused: {_DRAFT_MODEL}
    -devd --device-draft --spec-draft-device DEV,..., -cmoed --cpu-moe-draft --spec-draft-cpu-moe,
    -otd --override-tensor-draft --spec-draft-override-tensor PATTERN=TYPE,...,
    -ncmoed --n-cpu-moe-draft --spec-draft-ncmoe --spec-draft-n-cpu-moe N
refused: it accepts drafts at random, so answers would be wrong
    --spec-synth-len L, --spec-synth-rates P0,P1,...
refused: the projector runs where the model runs
    -mmdev --mmproj-device DEVICE
refused: use --mlock, --no-mmap or neither
    -lm --load-mode MODE
refused: use -ngl to place layers
    -ncffn --n-cpu-ffn N
refused: download the model and use -m
    -dr --docker-repo REPO
refused: there are no presets; name the model with -hf
    --embd-gemma-default, --fim-qwen-1.5b-default, --fim-qwen-3b-default, --fim-qwen-7b-default,
    --fim-qwen-7b-spec, --fim-qwen-14b-spec, --fim-qwen-30b-default, --gpt-oss-20b-default,
    --gpt-oss-120b-default, --vision-gemma-4b-default, --vision-gemma-12b-default
refused: Corral runs only tools of MCP servers: see --mcp-servers-config and --ui-mcp-origins
    --webui-mcp-proxy --ui-mcp-proxy / --no-webui-mcp-proxy --no-ui-mcp-proxy, --tools-runtime OPTION,
    -ag --agent / -no-ag --no-agent
refused: use /completion for raw text, or --reasoning-format none
    --skip-chat-parsing / --no-skip-chat-parsing
refused: use --log-prompts
    --log-prompts-dir PATH
"""


def _rows() -> Iterator[tuple[str, list[str]]]:
    """Yield the reasons of the table and their options."""
    lines = _TABLE.strip().splitlines()
    starts = [i for i, line in enumerate(lines) if not line.startswith(" ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield lines[start], " ".join(line.strip() for line in lines[start + 1 : end]).split(", ")


def _option(text: str, reason: str) -> Option:
    on, _, off = text.partition(" / ")
    words = on.split()
    names = tuple(word for word in words if word.startswith("-"))
    is_refused = reason.startswith(_REFUSED)
    return Option(
        names,
        metavar=" ".join(words[len(names) :]),
        target="",
        negative=tuple(off.split()),
        n_args=len(words) - len(names),
        note="" if is_refused else reason,
        refusal=reason.removeprefix(_REFUSED) if is_refused else "",
    )


def _draft_kinds(args: list[str]) -> str:
    """Check the kinds of drafts; those that need other parts of a model are refused."""
    for kind in args[0].split(","):
        if kind not in DRAFT_KINDS:
            raise ValueError(f"'{kind}' is not available; choose from {', '.join(DRAFT_KINDS)}")
    return args[0]


OPTIONS = (
    *(_option(text, reason) for reason, texts in _rows() for text in texts),
    Option(("--spec-type",), metavar="KIND,...", target="", note=_DRAFTS, parse=_draft_kinds),
)
