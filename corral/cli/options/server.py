"""Options: the server."""

from __future__ import annotations

from corral.cli.options import value
from corral.cli.options.option import Option, PathUse

OPTIONS = (
    Option(("--host",), "server.host", "address to listen on, or a path that ends with .sock", "HOST"),
    Option(("--port",), "server.port", "port to listen on; 0: any free one", "PORT", limits=(0, 65535)),
    Option(
        ("--path",),
        "server.static_path",
        "directory of files to serve at / instead of the page that comes with the server",
        path=PathUse.READ_DIRECTORY,
        env="LLAMA_ARG_STATIC_PATH",
    ),
    Option(
        ("--webui", "--ui"),
        "server.ui",
        "serve a page at /",
        env="LLAMA_ARG_WEBUI",
        negative=("--no-ui", "--no-webui"),
    ),
    Option(
        ("--webui-config", "--ui-config"),
        "server.ui_config",
        "settings that the page begins with, as a JSON object",
        "JSON",
        env="LLAMA_ARG_WEBUI_CONFIG",
        parse=value.json_object,
    ),
    Option(
        ("--webui-config-file", "--ui-config-file"),
        "server.ui_config_file",
        "file with such settings",
        env="LLAMA_ARG_WEBUI_CONFIG_FILE",
        path=PathUse.TEXT,
    ),
    Option(
        ("--chats",),
        "server.chats_path",
        "directory where the page keeps conversations, apart for every key, so that other browsers see them "
        "too (default: none, they stay in the browser)",
        path=PathUse.WRITE_DIRECTORY,
    ),
    Option(
        ("--embedding", "--embeddings"),
        "engine.embedding",
        "do nothing but embed; without it a model that generates does both",
    ),
    Option(
        ("--reranking", "--rerank"),
        "engine.reranking",
        "do nothing but rerank or classify, with a model that has a head for it: --embedding --pooling rank",
        env="LLAMA_ARG_RERANKING",
    ),
    Option(
        ("--api-key",),
        "server.api_keys",
        "key that requests must have, several with commas between them; may be repeated (default: none)",
        "KEY",
        env="LLAMA_API_KEY",
        parse=value.keys,
        secret=True,
    ),
    Option(
        ("--api-key-file",),
        "server.api_key_file",
        "file with such keys, one in a line, as KEY, NAME:KEY or NAME=WEIGHT:KEY; read again on SIGHUP",
        path=PathUse.TEXT,
    ),
    Option(
        ("--allow-unauthenticated",),
        "server.allow_unauthenticated",
        "answer clients of any address although there is no key; without it and without a key, only clients "
        "with a loopback or private address are answered",
    ),
    Option(
        ("--allowed-hosts",),
        "server.allowed_hosts",
        "names that clients may use in the Host header, as *.example.com; *: any (default: names of this "
        "machine if it listens there only, names of private networks if it has no key, else any)",
        "NAMES",
        parse=value.names,
    ),
    Option(
        ("--cors-origins",),
        "server.cors_origins",
        "whose pages may read answers, as https://example.com; localhost: those of this machine, *: any "
        "(default: any if there are keys, else localhost)",
        "ORIGINS",
        parse=value.names,
    ),
    Option(
        ("--cors-methods",), "server.cors_methods", "what such pages may do", "METHODS", parse=value.names
    ),
    Option(("--cors-headers",), "server.cors_headers", "headers they may send", "HEADERS", parse=value.names),
    Option(
        ("--cors-credentials",),
        "server.cors_credentials",
        "they may send cookies; needs --cors-origins, and not *",
        negative=("--no-cors-credentials",),
    ),
    Option(
        ("--cache-share",),
        "server.cache_share",
        "prompts of one key may begin with what was evaluated for another; how long they take then tells "
        "what others have asked",
        negative=("--no-cache-share",),
    ),
    Option(
        ("--queue-size",),
        "server.queue_size",
        "requests that may wait for a slot; more get a 503",
        limits=(0, 100_000),
    ),
    Option(
        ("--max-repeats",),
        "server.max_repeats",
        "end answers that say the same so many times in a row; 0: never",
        limits=(0, 1000),
    ),
    Option(
        ("--sleep-idle-seconds",),
        "server.sleep_idle_s",
        "let the model leave memory after so many seconds without work, until a request comes; -1: never",
        "S",
        limits=(-1, None),
    ),
    Option(
        ("--engine-restarts",),
        "server.engine_restarts",
        "engines in a row that may fail without having done anything, before the server gives up",
        limits=(0, 1000),
    ),
    Option(
        ("--otlp-endpoint",),
        "server.otlp_endpoint",
        "collector that gets traces, as http://127.0.0.1:4318; needs pip install 'llama-corral[otel]' "
        "(default: none)",
        "URL",
    ),
    Option(("--ssl-key-file",), "server.ssl_key_file", "private key for https, in PEM", path=PathUse.DATA),
    Option(("--ssl-cert-file",), "server.ssl_cert_file", "certificate for https, in PEM", path=PathUse.DATA),
    Option(
        ("-to", "--timeout"),
        "server.timeout_s",
        "seconds that a client may neither send nor take anything, and that running requests get to finish "
        "after SIGTERM; 0: clients have no limit",
        "S",
        limits=(0, None),
    ),
    Option(
        ("--threads-http",),
        "server.n_threads_http",
        "threads of the HTTP side; -1: as it thinks fit",
        limits=(-1, 1024),
    ),
    Option(
        ("-spf", "--system-prompt-file"),
        "server.system_prompt_file",
        "file with a prompt that all others begin with: JSON with prompt, anti_prompt and assistant_name, or "
        "just text",
        path=PathUse.TEXT,
    ),
    Option(("--log-format",), "server.log_format", "how log lines are written", choices=("text", "json")),
    Option(
        ("--metrics",),
        "server.metrics",
        "GET /metrics, for Prometheus",
        env="LLAMA_ARG_ENDPOINT_METRICS",
        negative=("--no-metrics",),
    ),
    Option(
        ("--slots",),
        "server.slots",
        "what slots are doing and hold, prompts included: GET /slots, its actions, and sessions",
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
        ("-sps", "--slot-prompt-similarity"),
        "engine.slot_prompt_similarity",
        "share of a prompt an idle slot must hold to be preferred; 0: off",
        "SHARE",
        limits=(0, 1),
    ),
    Option(
        ("--lora-init-without-apply",),
        "server.lora_init_without_apply",
        "adapters begin with a scale of 0, until POST /lora-adapters or a request says otherwise",
    ),
    Option(
        ("--engine-timeout",),
        "server.engine_timeout_s",
        "seconds without a sign of life before the engine is restarted",
        "S",
        limits=(1, None),
    ),
    Option(("--max-body-mb",), "server.max_body_mib", "largest request body", "MiB", limits=(1, None)),
)
