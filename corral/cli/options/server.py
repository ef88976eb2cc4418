"""Options: the server, chats, and the state of conversations."""

from __future__ import annotations

from corral.cli.options import value
from corral.cli.options.option import Option, PathUse

OPTIONS = (
    Option(("--host",), "address to listen on, or a path that ends with .sock", "HOST"),
    Option(("--port",), "port to listen on; 0: any free one", "PORT", limits=(0, 65535)),
    Option(
        ("--path",),
        "directory of files to serve at / instead of the page that comes with the server",
        path=PathUse.READ_DIRECTORY,
        env="LLAMA_ARG_STATIC_PATH",
        target="server.static_path",
    ),
    Option(
        ("--webui", "--ui"), "serve a page at /", env="LLAMA_ARG_WEBUI", negative=("--no-ui", "--no-webui")
    ),
    Option(
        ("--webui-config", "--ui-config"),
        "settings that the page begins with, as a JSON object",
        "JSON",
        env="LLAMA_ARG_WEBUI_CONFIG",
        parse=value.json_object,
    ),
    Option(
        ("--webui-config-file", "--ui-config-file"),
        "file with such settings",
        env="LLAMA_ARG_WEBUI_CONFIG_FILE",
        path=PathUse.TEXT,
    ),
    Option(
        ("--chats",),
        "directory where the page keeps conversations, apart for every key, so that other browsers see them "
        "too (default: none, they stay in the browser)",
        path=PathUse.WRITE_DIRECTORY,
        target="server.chats_path",
    ),
    Option(
        ("--embedding", "--embeddings"),
        "do nothing but embed; without it a model that generates does both",
        target="engine.embedding",
    ),
    Option(
        ("--reranking", "--rerank"),
        "do nothing but rerank or classify, with a model that has a head for it: --embedding --pooling rank",
        env="LLAMA_ARG_RERANKING",
        target="engine.reranking",
    ),
    Option(
        ("--api-key",),
        "key that requests must have, several with commas between them; may be repeated (default: none)",
        "KEY",
        env="LLAMA_API_KEY",
        parse=value.keys,
        secret=True,
        target="server.api_keys",
    ),
    Option(
        ("--api-key-file",),
        "file with such keys, one in a line, as KEY, NAME:KEY or NAME=WEIGHT:KEY; read again on SIGHUP",
        path=PathUse.TEXT,
    ),
    Option(
        ("--allow-unauthenticated",),
        "answer clients of any address although there is no key; without it and without a key, only clients "
        "with a loopback or private address are answered",
    ),
    Option(
        ("--allowed-hosts",),
        "names that clients may use in the Host header, as *.example.com; *: any (default: names of this "
        "machine if it listens there only, names of private networks if it has no key, else any)",
        "NAMES",
        parse=value.names,
    ),
    Option(
        ("--cors-origins",),
        "whose pages may read answers, as https://example.com; localhost: those of this machine, *: any "
        "(default: any if there are keys, else localhost)",
        "ORIGINS",
        parse=value.names,
    ),
    Option(("--cors-methods",), "what such pages may do", "METHODS", parse=value.names),
    Option(("--cors-headers",), "headers they may send", "HEADERS", parse=value.names),
    Option(
        ("--cors-credentials",),
        "they may send cookies; needs --cors-origins, and not *",
        negative=("--no-cors-credentials",),
    ),
    Option(
        ("--cache-share",),
        "prompts of one key may begin with what was evaluated for another; how long they take then tells "
        "what others have asked",
        negative=("--no-cache-share",),
    ),
    Option(("--queue-size",), "requests that may wait for a slot; more get a 503", limits=(0, 100_000)),
    Option(
        ("--max-repeats",), "end answers that repeat themselves N times in a row; 0: never", limits=(0, 1000)
    ),
    Option(
        ("--sleep-idle-seconds",),
        "unload the model after S seconds without work, until the next request; -1: never",
        "S",
        limits=(-1, None),
        target="server.sleep_idle_s",
    ),
    Option(
        ("--engine-restarts",),
        "engines in a row that may fail without having done anything, before the server gives up",
        limits=(0, 1000),
    ),
    Option(
        ("--otlp-endpoint",),
        "collector that gets traces, as http://127.0.0.1:4318; needs pip install 'llama-corral[otel]' "
        "(default: none)",
        "URL",
    ),
    Option(("--ssl-key-file",), "private key for https, in PEM", path=PathUse.DATA),
    Option(("--ssl-cert-file",), "certificate for https, in PEM", path=PathUse.DATA),
    Option(
        ("-to", "--timeout"),
        "seconds that a client may neither send nor take anything, and that running requests get to finish "
        "after SIGTERM; 0: clients have no limit",
        "S",
        limits=(0, None),
        target="server.timeout_s",
    ),
    Option(
        ("--threads-http",),
        "threads of the HTTP side; -1: as it thinks fit",
        limits=(-1, 1024),
        target="server.n_threads_http",
    ),
    Option(
        ("-spf", "--system-prompt-file"),
        "file with a prompt that all others begin with: JSON with prompt, anti_prompt and assistant_name, or "
        "just text",
        path=PathUse.TEXT,
    ),
    Option(("--log-format",), "how log lines are written", choices=("text", "json")),
    Option(
        ("--metrics",),
        "GET /metrics, for Prometheus",
        env="LLAMA_ARG_ENDPOINT_METRICS",
        negative=("--no-metrics",),
    ),
    Option(
        ("--slots",),
        "what slots are doing and hold, prompts included: GET /slots, its actions, and sessions",
        env="LLAMA_ARG_ENDPOINT_SLOTS",
        negative=("--no-slots", "--slots-endpoint-disable"),
    ),
    Option(("--props",), "POST /props may change global properties", env="LLAMA_ARG_ENDPOINT_PROPS"),
    Option(
        ("-sps", "--slot-prompt-similarity"),
        "share of a prompt an idle slot must hold to be preferred; 0: off",
        "SHARE",
        limits=(0, 1),
    ),
    Option(
        ("--lora-init-without-apply",),
        "adapters begin with a scale of 0, until POST /lora-adapters or a request says otherwise",
    ),
    Option(
        ("--engine-timeout",),
        "seconds without a sign of life before the engine is restarted",
        "S",
        limits=(1, None),
        target="server.engine_timeout_s",
    ),
    Option(("--max-body-mb",), "largest request body", "MiB", limits=(1, None), target="server.max_body_mib"),
)

CHAT = (
    Option(
        ("--chat-template",),
        "chat template: the name of a well-known one, or jinja (default: the model's own, else chatml)",
        "TEMPLATE",
        parse=value.template,
    ),
    Option(("--chat-template-file",), "file with a chat template in jinja", path=PathUse.TEXT),
    Option(
        ("--chat-template-kwargs",),
        "more names for the chat template, as a JSON object",
        "JSON",
        parse=value.json_object,
    ),
    Option(("--jinja",), "allow tools, which need jinja templates", negative=("--no-jinja",)),
    Option(
        ("-rea", "--reasoning"),
        "whether models that can think do so unless a request says otherwise; auto: yes",
        choices=("on", "off", "auto"),
    ),
    Option(
        ("--reasoning-format",),
        "where a model's thoughts go: none leaves them in the content, deepseek puts them into "
        "reasoning_content, deepseek-legacy does both, auto is deepseek",
        "FORMAT",
        choices=("none", "auto", "deepseek", "deepseek-legacy"),
    ),
    Option(
        ("--prefill-assistant",),
        "a chat that ends with an assistant's message is continued there",
        negative=("--no-prefill-assistant",),
    ),
    Option(
        ("--parse-special",),
        "texts like <|im_end|> in chat messages are control tokens, as in llama-server",
        negative=("--no-parse-special",),
    ),
)

STATE = (
    Option(
        ("--slot-save-path",),
        "directory for files of slots and for sessions that --sessions-ram has no room for (default: none)",
        path=PathUse.WRITE_DIRECTORY,
    ),
    Option(
        ("--sessions-ram",),
        "memory for sessions; beyond it they go to --slot-save-path",
        "MiB",
        limits=(0, None),
        target="server.sessions_ram_mib",
    ),
    Option(
        ("-cram", "--cache-ram"),
        "host memory for the states of prompts that left their slot; 0: off, -1: no limit",
        "MiB",
        limits=(-1, None),
        target="engine.cache_ram_mib",
    ),
    Option(
        ("--cache-disk",),
        "directory for the states of prompts that --cache-ram has no room for; they outlive the server",
        path=PathUse.OWN_DIRECTORY,
    ),
    Option(("--cache-disk-gib",), "how much of the disk --cache-disk may take", "GiB", limits=(0, None)),
    Option(
        ("--cache-reuse",),
        "move runs of N tokens from further back in a context, instead of evaluating them again, "
        "unless a request says so; 0: off",
        limits=(0, None),
    ),
)
