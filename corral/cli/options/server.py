"""Options: the server, chats and saved conversations."""

from __future__ import annotations

from corral.cli.options import value
from corral.cli.options.option import Option, PathUse

OPTIONS = (
    Option(
        ("--host",),
        "address to listen on, or the path of a Unix socket that ends with .sock; several with commas",
        "HOST,...",
    ),
    Option(("--port",), "port to listen on; 0: any free one", "PORT", limits=(0, 65535)),
    Option(
        ("--path",),
        "directory of static files to serve at / instead of the built-in page",
        path=PathUse.READ_DIRECTORY,
        env="LLAMA_ARG_STATIC_PATH",
        target="server.static_path",
    ),
    Option(
        ("--webui", "--ui"),
        "serve the web UI at /",
        env="LLAMA_ARG_WEBUI",
        negative=("--no-ui", "--no-webui"),
    ),
    Option(
        ("--webui-config", "--ui-config"),
        "default settings of the web UI, as a JSON object",
        "JSON",
        env="LLAMA_ARG_WEBUI_CONFIG",
        parse=value.json_object,
    ),
    Option(
        ("--webui-config-file", "--ui-config-file"),
        "file with default settings of the web UI",
        env="LLAMA_ARG_WEBUI_CONFIG_FILE",
        path=PathUse.TEXT,
    ),
    Option(
        ("--ui-mcp-origins",),
        "origins of MCP servers that the web UI may call, as https://mcp.example.com (default: none)",
        "ORIGINS",
        parse=value.origins,
    ),
    Option(
        ("--mcp-servers-config",),
        'JSON file with MCP servers, as {"mcpServers": {...}}; keys that may use them can run their tools '
        "(default: none)",
        path=PathUse.TEXT,
    ),
    Option(
        ("--mcp-servers-json",),
        "the same as JSON, in addition to those of the file",
        "JSON",
        parse=value.mcp_servers,
    ),
    Option(
        ("--tools",),
        "answer `/tools` also without MCP servers, as in llama-server (default: with MCP servers only)",
        "TOOL,...",
        note="there are no built-in tools; /tools has those of MCP servers (--mcp-servers-config)",
    ),
    Option(
        ("--chats",),
        "directory for the chats of the web UI, separate for each API key (default: none, they stay in "
        "the browser)",
        path=PathUse.WRITE_DIRECTORY,
        target="server.chats_path",
    ),
    Option(
        ("--responses",),
        "directory for responses and conversations of /v1/responses, separate for each API key (default: "
        "none, they are lost at a restart)",
        path=PathUse.WRITE_DIRECTORY,
        target="server.responses_path",
    ),
    Option(
        ("--batches",),
        "directory for files and batches, separate for each API key; unfinished batches continue after a "
        "restart (default: none, they are refused)",
        path=PathUse.WRITE_DIRECTORY,
        target="server.batches_path",
    ),
    Option(
        ("--ledger",),
        "file for the usage of every API key and day (default: none, it is lost at a restart)",
        "FILE",
        path=PathUse.OUTPUT,
    ),
    Option(
        ("--journal",),
        "directory for the journal of durable requests, which continue after a restart or a kill "
        "(default: none)",
        path=PathUse.WRITE_DIRECTORY,
    ),
    Option(
        ("--journal-max-mb",),
        "most MiB of the journal of an API key; requests beyond are not durable",
        "MiB",
        limits=(1, None),
        target="server.journal_max_mib",
    ),
    Option(
        ("--journal-max-age",),
        "most seconds after which the next server still continues a request",
        "SECONDS",
        limits=(0, None),
        target="server.journal_max_age_s",
    ),
    Option(
        ("--journal-fsync",),
        "when to fsync the journal: always (before each token is sent), second, or never",
        choices=("always", "second", "never"),
    ),
    Option(
        ("--embedding", "--embeddings"),
        "serve only embeddings; without it a generative model serves both",
        target="engine.embedding",
    ),
    Option(
        ("--reranking", "--rerank"),
        "serve only reranking or classification, with a model that has a head for it: --embedding "
        "--pooling rank",
        env="LLAMA_ARG_RERANKING",
        target="engine.reranking",
    ),
    Option(
        ("--api-key",),
        "API key, several separated by commas; may be repeated (default: none)",
        "KEY",
        env="LLAMA_API_KEY",
        parse=value.keys,
        secret=True,
        target="server.api_keys",
    ),
    Option(
        ("--api-key-file",),
        "file with API keys, one per line, as KEY, NAME:KEY or NAME=WEIGHT:KEY, with limits and a role as "
        "in NAME,admin,tpm=60000,tpd=1000000,concurrent=4:KEY; reloaded on SIGHUP",
        path=PathUse.TEXT,
    ),
    Option(
        ("--allow-unauthenticated",),
        "serve clients of any address although there is no API key; otherwise only loopback and private "
        "addresses are served then",
    ),
    Option(
        ("--allowed-hosts",),
        "allowed names in the Host header, as *.example.com; *: any (default: names of this machine if "
        "it listens there only, names of private networks if there is no API key, else any)",
        "NAMES",
        parse=value.names,
    ),
    Option(
        ("--cors-origins",),
        "origins whose pages may read responses, as https://example.com; localhost: those of this "
        "machine, *: any (default: any if there are API keys, else localhost)",
        "ORIGINS",
        parse=value.names,
    ),
    Option(("--cors-methods",), "methods that other origins may use", "METHODS", parse=value.names),
    Option(("--cors-headers",), "headers that other origins may send", "HEADERS", parse=value.names),
    Option(
        ("--cors-credentials",),
        "other origins may send cookies; requires --cors-origins other than *",
        negative=("--no-cors-credentials",),
    ),
    Option(
        ("--cache-share",),
        "reuse prompt prefixes across API keys; response times then reveal what other keys have asked",
        negative=("--no-cache-share",),
    ),
    Option(
        ("--queue-size",), "requests that may wait for a slot; further ones get a 503", limits=(0, 100_000)
    ),
    Option(
        ("--api-prefix",),
        "prefix of all paths, without the slash at the end (default: none)",
        "PREFIX",
        parse=value.path_prefix,
        repeats=False,
    ),
    Option(
        ("--sse-ping-interval",),
        "seconds of silence after which a stream sends a comment, unless a request sets it; -1: never",
        limits=(-1, None),
        target="server.sse_ping_s",
    ),
    Option(("--reuse-port",), "let several servers listen on the same port; the system spreads connections"),
    Option(
        ("--max-predict",),
        "maximum number of tokens of any answer, whatever a request asks for; -1: no limit",
        limits=(-1, None),
    ),
    Option(
        ("--max-repeats",), "stop answers that repeat themselves N times in a row; 0: off", limits=(0, 1000)
    ),
    Option(
        ("--sleep-idle-seconds",),
        "unload the model after S seconds of idleness, until the next request; -1: never",
        "S",
        limits=(-1, None),
        target="server.sleep_idle_s",
    ),
    Option(
        ("--engine-restarts",),
        "engine failures in a row, while it loads or is idle, after which the server stops restarting it",
        limits=(0, 1000),
    ),
    Option(
        ("--otlp-endpoint",),
        "OpenTelemetry collector for traces, as http://127.0.0.1:4318; requires pip install "
        "'.[otel]' in a clone of Corral (default: none)",
        "URL",
    ),
    Option(("--ssl-key-file",), "private key file for HTTPS, in PEM", path=PathUse.DATA),
    Option(("--ssl-cert-file",), "certificate file for HTTPS, in PEM", path=PathUse.DATA),
    Option(
        ("-to", "--timeout"),
        "seconds until an inactive client is disconnected, and until running requests are cancelled "
        "after SIGTERM; 0: no limit for clients",
        "S",
        limits=(0, None),
        target="server.timeout_s",
    ),
    Option(
        ("--threads-http",),
        "threads for HTTP requests; -1: automatic",
        limits=(-1, 1024),
        target="server.n_threads_http",
    ),
    Option(
        ("-spf", "--system-prompt-file"),
        "file with a system prompt that precedes all prompts: JSON with prompt, anti_prompt and "
        "assistant_name, or plain text",
        path=PathUse.TEXT,
    ),
    Option(("--log-format",), "format of log lines", choices=("text", "json")),
    Option(
        ("--metrics",),
        "enable GET /metrics, for Prometheus",
        env="LLAMA_ARG_ENDPOINT_METRICS",
        negative=("--no-metrics",),
    ),
    Option(
        ("--slots",),
        "enable GET /slots, slot actions and sessions; they show prompts",
        env="LLAMA_ARG_ENDPOINT_SLOTS",
        negative=("--no-slots", "--slots-endpoint-disable"),
    ),
    Option(("--props",), "allow POST /props, which changes nothing yet", env="LLAMA_ARG_ENDPOINT_PROPS"),
    Option(
        ("-sps", "--slot-prompt-similarity"),
        "share of a prompt that an idle slot must match to be preferred; 0: off",
        "SHARE",
        limits=(0, 1),
    ),
    Option(
        ("--lora-init-without-apply",),
        "load adapters with scale 0, until POST /lora-adapters or a request changes it",
    ),
    Option(
        ("--engine-timeout",),
        "seconds without a heartbeat before the engine is restarted",
        "S",
        limits=(1, None),
        target="server.engine_timeout_s",
    ),
    Option(
        ("--max-body-mb",),
        "largest request body, in MiB",
        "MiB",
        limits=(1, None),
        target="server.max_body_mib",
    ),
    Option(
        ("--max-response-mb",),
        "largest answer, as estimated from what a request asks for; of a stream, the largest event",
        "MiB",
        limits=(1, None),
        target="server.max_response_mib",
    ),
    Option(
        ("--send-timeout",),
        "seconds that a client may take to read 64 KiB of an answer; 0: no limit",
        "S",
        limits=(0, None),
        target="server.send_timeout_s",
    ),
)

CHAT = (
    Option(
        ("--chat-template",),
        "chat template: the name of a built-in one, or Jinja text (default: the model's, else chatml)",
        "TEMPLATE",
        parse=value.template,
    ),
    Option(("--chat-template-file",), "file with a Jinja chat template", path=PathUse.TEXT),
    Option(
        ("--chat-template-kwargs",),
        "additional variables for the chat template, as a JSON object",
        "JSON",
        parse=value.json_object,
    ),
    Option(("--jinja",), "use Jinja templates; tools require it", negative=("--no-jinja",)),
    Option(
        ("-rea", "--reasoning"),
        "enable reasoning for models that support it, unless a request decides; auto: yes",
        choices=("on", "off", "auto"),
    ),
    Option(
        ("--reasoning-format",),
        "where reasoning is returned: none leaves it in content, deepseek puts it into "
        "reasoning_content, deepseek-legacy does both, auto is deepseek",
        "FORMAT",
        choices=("none", "auto", "deepseek", "deepseek-legacy"),
    ),
    Option(
        ("--reasoning-budget",),
        "the most tokens of reasoning before it is ended, unless a request sets it; 0: end it immediately, "
        "-1: no limit",
        limits=(-1, None),
        env="LLAMA_ARG_THINK_BUDGET",
    ),
    Option(
        ("--reasoning-budget-message",),
        "text before the end tag of reasoning that is ended, unless a request sets it",
        "TEXT",
        env="LLAMA_ARG_THINK_BUDGET_MESSAGE",
    ),
    Option(
        ("--reasoning-effort",),
        "how much to reason, for chat templates that support it, unless a request decides: a level such as "
        "low, medium or high; none disables reasoning, default leaves it to the template",
        "LEVEL",
    ),
    Option(
        ("--prefill-assistant",),
        "continue the last message of a chat if it is the assistant's",
        negative=("--no-prefill-assistant",),
    ),
    Option(
        ("--parse-special",),
        "parse control tokens such as <|im_end|> in chat messages, as llama-server does",
        negative=("--no-parse-special",),
    ),
)

STATE = (
    Option(
        ("--slot-save-path",),
        "directory for slot files, and for sessions that do not fit into --sessions-ram (default: none)",
        path=PathUse.WRITE_DIRECTORY,
    ),
    Option(
        ("--sessions-ram",),
        "memory for sessions; beyond it they are moved to --slot-save-path",
        "MiB",
        limits=(0, None),
        target="server.sessions_ram_mib",
    ),
    Option(
        ("-cram", "--cache-ram"),
        "host memory for the states of prompts that were evicted from their slot; 0: off, -1: no limit",
        "MiB",
        limits=(-1, None),
        target="engine.cache_ram_mib",
    ),
    Option(
        ("--cache-disk",),
        "directory for prompt states that do not fit into --cache-ram; they survive a restart",
        path=PathUse.OWN_DIRECTORY,
    ),
    Option(("--cache-disk-gib",), "largest size of --cache-disk", "GiB", limits=(0, None)),
    Option(
        ("--cache-prompt",),
        "reuse the beginning of prompts, unless a request sets it",
        negative=("--no-cache-prompt",),
    ),
    Option(
        ("--cache-reuse",),
        "smallest run of matching tokens to move within a context instead of evaluating it again, "
        "unless a request sets it; 0: off",
        limits=(0, None),
    ),
)
