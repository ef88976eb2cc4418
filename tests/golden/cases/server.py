"""The server itself: health, properties, models, metrics, monitor, pages."""

from __future__ import annotations

from typing import Any

from tests.golden.case import MANY, MANY_SEALED, ONE, ONE_SEALED, SETUPS, Ask, Case, Model, Sleep

HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
_CHAT = Ask("POST", "/v1/chat/completions", HELLO)
_HEALTH = tuple(
    Ask(method, path) for path in ("/health", "/v1/health", "/ready") for method in ("GET", "HEAD")
)
_SEALED = (ONE_SEALED, MANY_SEALED)
_MANY = (MANY, MANY_SEALED)
_ONE = (ONE, ONE_SEALED)


def _get(*paths: str, **options: Any) -> tuple[Ask, ...]:
    return tuple(Ask("GET", path, **options) for path in paths)


def _model(path: str, method: str = "POST", **fields: Any) -> Ask:
    return Ask(method, path, {"model": "m", **fields})


_ENGINES = (
    Ask("GET", "/engines"),
    Ask("POST", "/engines/update", {"model": "new.gguf"}),
    Ask("POST", "/engines/0/drain"),
)

CASES = [
    Case("health", _HEALTH),
    Case("health while the model loads", _HEALTH, Model(is_ready=False), setups=_ONE),
    Case(
        "health of models that are not loaded",
        (*_HEALTH, *_get("/health?model=m", "/ready?model=m")),
        Model(is_loaded=False),
        setups=_MANY,
    ),
    *(
        Case(f"health of an engine that is {state}", (Sleep(state), *_HEALTH), setups=_ONE)
        for state in ("sleeping", "restarting", "failed")
    ),
    Case("health without a key", tuple(Ask(ask.method, ask.path, key="") for ask in _HEALTH), setups=_SEALED),
    Case("properties", (*_get("/props", "/props?model=m"), Ask("HEAD", "/props"), Ask("POST", "/props", {}))),
    Case(
        "properties that can be changed",
        (_model("/props"), _model("/props", unknown=1)),
        options={"props": True},
    ),
    Case("properties without a key", _get("/props", "/props?model=m", key=""), setups=_SEALED),
    Case(
        "properties of a model that is not loaded",
        _get("/props?model=m", "/props?model=m&autoload=0"),
        Model(is_loaded=False),
    ),
    Case(
        "models",
        (
            *_get(
                "/v1/models",
                "/models",
                "/v1/models/m",
                "/v1/models/m-alias",
                "/v1/models/x",
                "/v1/models?reload=1",
            ),
            Ask("HEAD", "/v1/models"),
        ),
    ),
    Case("models that are not loaded", _get("/v1/models", "/v1/models/m"), Model(is_loaded=False)),
    Case("models without a key", _get("/v1/models", "/v1/models/m", key=""), setups=_SEALED),
    Case(
        "load and unload",
        (
            _model("/models/load"),
            *(Ask("POST", f"/models/{what}", {"model": "x"}) for what in ("load", "unload")),
            _model("/models/unload"),
            _model("/models/unload"),
            *_get("/v1/models/m"),
            _CHAT,
            Ask("GET", "/models/sse?limit=2"),
        ),
    ),
    Case("downloads", (_model("/models"), Ask("DELETE", "/models?model=m"), Ask("DELETE", "/models"))),
    Case("engines", _ENGINES),
    Case(
        "metrics",
        (_CHAT, *_get("/metrics"), Ask("HEAD", "/metrics")),
        Model(is_loaded=False),  # it is loaded by requests, which are counted
        {"metrics": True},
    ),
    Case("metrics that are off", _get("/metrics", "/metrics?model=m")),
    Case(
        "the use of a key",
        (
            _CHAT,
            *_get("/v1/usage", "/v1/usage?days=2", "/v1/usage?days=x"),
            Ask("GET", "/v1/usage", key="user"),
        ),
        options={"ledger": "$file"},
    ),
    Case("the use without a ledger", _get("/v1/usage")),
    Case(
        "the monitor",
        (
            Ask("GET", "/monitor/events?model=m&limit=1"),
            Ask("GET", "/monitor/events?model=m&limit=x"),
            Ask("GET", "/monitor/events?model=m&prompts=true&limit=1"),
            Ask("GET", "/monitor/requests/99?model=m"),
            Ask("GET", "/monitor/requests/x?model=m"),
        ),
    ),
    Case(
        "a page that does not exist",
        (
            *_get("/none", "/none?x=1", key=""),
            Ask("POST", "/none"),
            Ask("HEAD", "/none"),
            Ask("OPTIONS", "/none"),
        ),
    ),
    Case(
        "pages",
        (
            *_get("/", "/index.html", "/docs", "/openapi.json", "/favicon.ico", is_long=True),
            Ask("HEAD", "/"),
            Ask("POST", "/"),
        ),
    ),
    Case("no pages", _get("/", "/index.html"), options={"ui": False}),
    Case(
        "outside of the prefix",
        (
            Ask("GET", "/health", is_outside=True),
            Ask("GET", "/base", is_outside=True),
            Ask("GET", "/basement", is_outside=True),
        ),
        setups=SETUPS,
    ),
    Case(
        "another host",
        (
            Ask("GET", "/health", headers={"host": "example.com"}),
            Ask("GET", "/health", headers={"host": "a/b"}),
        ),
    ),
    Case(
        "a page of another origin",
        (
            Ask("GET", "/v1/models", headers={"origin": "https://example.com"}),
            Ask(
                "OPTIONS",
                "/v1/models",
                headers={"origin": "https://example.com", "access-control-request-method": "GET"},
            ),
            Ask(
                "OPTIONS",
                "/v1/models",
                headers={"origin": "http://localhost", "access-control-request-method": "GET"},
            ),
            Ask(
                "OPTIONS",
                "/v1/chat/completions",
                headers={
                    "origin": "http://localhost",
                    "access-control-request-method": "POST",
                    "access-control-request-headers": "authorization, x-a",
                },
            ),
        ),
    ),
    Case(
        "keys in other headers",
        (
            Ask("GET", "/v1/usage", headers={"x-api-key": "key-user"}, key=""),
            Ask("GET", "/v1/usage", headers={"authorization": "bearer key-user"}, key=""),
            Ask("GET", "/v1/usage", headers={"authorization": "Basic key-user"}, key=""),
            Ask("GET", "/v1/usage?key=key-user", key=""),
        ),
        setups=_SEALED,
    ),
    Case("tools without any", (Ask("GET", "/tools"), Ask("POST", "/tools", {"tool": "x", "params": {}}))),
    Case(
        "tools",
        (Ask("GET", "/tools"), Ask("POST", "/tools", {"tool": "x", "params": {}}), Ask("POST", "/tools", {})),
        options={"tools": "all"},
    ),
    Case(
        "Vertex",
        (
            Ask("GET", "/alive", key=""),
            Ask(
                "POST",
                "/ask",
                {
                    "instances": [
                        {"@requestFormat": "chatCompletions", **HELLO},
                        {"@requestFormat": "/tokenize", "model": "m", "content": "Hi"},
                        {"@requestFormat": "chatCompletions", **HELLO, "temperature": "hot"},
                        {"@requestFormat": "nothing"},
                        7,
                    ]
                },
            ),
            Ask("POST", "/ask", {}),
            Ask("POST", "/ask", {"instances": [{"@requestFormat": "/props"}]}, key="user"),
            Ask("POST", "/ask", {"instances": []}, key="read-only"),
            Ask("POST", "/ask", {"instances": []}, key=""),
            Ask("GET", "/ask"),
        ),
        environ={"AIP_MODE": "PREDICTION", "AIP_HEALTH_ROUTE": "/alive", "AIP_PREDICT_ROUTE": "/ask"},
    ),
]
