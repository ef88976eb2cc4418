"""Options: server."""

from __future__ import annotations

from corral.cli.options.option import Option

OPTIONS = (
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
)
