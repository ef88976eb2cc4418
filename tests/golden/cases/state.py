"""What slots hold, saved sessions, adapters."""

from __future__ import annotations

from typing import Any

from tests.golden.case import Ask, Begin, Case, Model

_SLOTS = {"slots": True, "slot_save_path": "$dir"}
_TALK = Ask("POST", "/completion", {"model": "m", "prompt": "Hi", "id_slot": 0}, is_long=True)
_BINARY = {"accept": "application/octet-stream"}


def _slot(action: str, body: Any = None, id_slot: str = "0", **options: Any) -> Ask:
    return Ask("POST", f"/slots/{id_slot}?action={action}&model=m", body, **options)


def _session(action: str) -> Ask:
    return Ask("POST", f"/sessions/tea?action={action}&model=m")


CASES = [
    Case(
        "slots",
        (
            _TALK,
            Ask("GET", "/slots?model=m"),
            Ask("HEAD", "/slots?model=m"),
            Ask("GET", "/slots?model=m&fail_on_no_slot=1"),
            Ask("GET", "/slots"),
        ),
        Model(n_slots=2),
        _SLOTS,
    ),
    Case(
        "slots of a model that is not loaded", (Ask("GET", "/slots?model=m"),), Model(is_loaded=False), _SLOTS
    ),
    Case("slots that are off", (Ask("GET", "/slots?model=m"), _slot("erase")), options={"slots": False}),
    Case(
        "a slot that is taken",
        (Begin(_TALK, steps=2), Ask("GET", "/slots?model=m"), Ask("GET", "/slots?model=m&fail_on_no_slot=1")),
        Model(n_slots=1),
        _SLOTS,
    ),
    Case(
        "what a slot holds",
        (
            _TALK,
            Ask("GET", "/v1/slots/0/info?model=m"),
            Ask("GET", "/slots/0/info?model=m"),
            Ask("GET", "/slots/9/info?model=m"),
            Ask("HEAD", "/slots/0/info?model=m"),
        ),
        options=_SLOTS,
    ),
    Case(
        "save, erase and restore",
        (
            _TALK,
            _slot("save", {"filename": "a.bin"}),
            _slot("erase"),
            _slot("restore", {"filename": "a.bin"}),
            _slot("tokens"),
            _slot("restore", {"filename": "none.bin"}),
            _slot("restore", {"filename": "../x"}),
            _slot("save", {"filename": "a.bin"}, "9"),
            _slot("save", {"filename": "a.bin"}, "x"),
            _slot("dance"),
            Ask("POST", "/slots/0?model=m"),
        ),
        options=_SLOTS,
    ),
    Case("save without a directory", (_TALK, _slot("save", {"filename": "a.bin"})), options={"slots": True}),
    Case(
        "fork and shift",
        (
            _TALK,
            _slot("fork&slot=1"),
            _slot("fork"),
            _slot("context-shift", {"n_keep": 0, "n_discard": 2}),
            _slot("save-state", headers=_BINARY),
        ),
        options=_SLOTS,
    ),
    Case(
        "of another key",
        (
            _TALK,
            _slot("tokens", key="user"),
            _slot("erase", key="inference-only"),
            _slot("erase", key="read-only"),
        ),
        options=_SLOTS,
        setups=("one sealed", "many sealed"),
    ),
    Case(
        "sessions",
        (
            _TALK,
            _session("save&slot=0"),
            _session("save"),
            Ask("GET", "/sessions?model=m"),
            Ask("HEAD", "/sessions?model=m"),
            _session("fork&to=coffee"),
            _session("fork&to=.x"),
            _session("restore&slot=1"),
            _slot("tokens", None, "1"),
            _session("remove"),
            _session("remove"),
            _session("dance"),
            Ask("GET", "/sessions?model=m"),
        ),
        options=_SLOTS,
    ),
    Case(
        "adapters",
        (
            Ask("GET", "/lora-adapters?model=m"),
            Ask("HEAD", "/lora-adapters?model=m"),
            Ask("POST", "/lora-adapters?model=m", []),
            Ask("POST", "/lora-adapters?model=m", [{"id": 0, "scale": 0.5}]),
            Ask("POST", "/lora-adapters/load?model=m", {"name": "a"}),
            Ask("POST", "/lora-adapters/unload?model=m", {"name": "a"}),
        ),
    ),
    Case(
        "adapters of a directory",
        (
            Ask("POST", "/lora-adapters/load?model=m", {"name": "none"}),
            Ask("POST", "/lora-adapters/load?model=m", {}),
        ),
        options={"lora_dir": "$dir"},
    ),
]
