"""The lines of a batch: check them, and order them so that those with a common prefix follow each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import orjson
import xxhash

from corral.core.errors import InvalidRequest
from corral.text.json_depth import check_json

MESSAGES = "/v1/messages"
MAX_LINES = 50_000
MAX_ID_CHARS = 512
_MAX_LINE_BYTES = 64 << 20
_MAX_ERRORS = 100  # that an answer lists
_PREFIXES = (256, 1024, 4096, 16384, 65536)  # bytes of a prompt by which lines are grouped
_ABOUT = ("tools", "system", "instructions", "messages", "input", "prompt")  # in the order of prompts


class Line(NamedTuple):
    """A line of an input file: its number from 1, its place, and the hashes of its prompt's prefixes."""

    prefixes: bytes
    number: int
    start: int
    n_bytes: int
    custom_id: str


class Checked(NamedTuple):
    """`errors`: as the API lists them, with the numbers of the lines."""

    lines: list[Line]
    errors: list[dict[str, Any]]
    model: str | None


class _Fault(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def check_lines(path: Path, endpoint: str, has_many_models: bool = False) -> Checked:
    """Read a whole input file; in a thread. `has_many_models`: lines may name different ones."""
    check = _Check(endpoint, has_many_models)
    start = 0
    with path.open("rb") as file:
        for number, text in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), 1):
            if text.strip():
                check.add(number, start, text)
            start += len(text)
    return check.result()


def parse_line(text: bytes) -> tuple[str, bytes]:
    """Return the `custom_id` and the body of a line that was checked."""
    line = orjson.loads(text)
    return line["custom_id"], orjson.dumps(line["body"])


def read_line(path: Path, line: Line) -> bytes:
    with path.open("rb") as file:
        file.seek(line.start)
        return file.read(line.n_bytes)


class _Check:
    """Mutable: what is known of a file so far."""

    def __init__(self, endpoint: str, has_many_models: bool) -> None:
        self._endpoint = endpoint
        self._has_many_models = has_many_models
        self._lines: list[Line] = []
        self._errors: list[dict[str, Any]] = []
        self._ids: set[str] = set()
        self._model: str | None = None

    def add(self, number: int, start: int, text: bytes) -> None:
        try:
            if len(self._lines) >= MAX_LINES:
                raise _Fault("too_many_lines", f"a batch may have at most {MAX_LINES} lines")
            line = _parse(text)
            self._check_frame(line)
            self._check_body(line["body"])
        except _Fault as fault:
            if len(self._errors) < _MAX_ERRORS:
                about = {"code": fault.code, "message": fault.message, "param": fault.param}
                self._errors.append({**about, "line": number})
            return
        self._ids.add(line["custom_id"])
        self._lines.append(Line(_prefixes(line["body"]), number, start, len(text), line["custom_id"]))

    def result(self) -> Checked:
        if not self._lines and not self._errors:
            empty = {"code": "empty_file", "message": "the file has no lines", "param": None, "line": None}
            self._errors.append(empty)
        return Checked(sorted(self._lines), self._errors, self._model)

    def _check_frame(self, line: dict[str, Any]) -> None:
        id = line.get("custom_id")
        if not isinstance(id, str) or not 0 < len(id) <= MAX_ID_CHARS:
            message = f"must be a string of 1 to {MAX_ID_CHARS} characters"
            raise _Fault("invalid_custom_id", message, "custom_id")
        if id in self._ids:
            raise _Fault("duplicate_custom_id", f"'{id:.64}' is the id of an earlier line", "custom_id")
        if line.get("method", "POST") != "POST":
            raise _Fault("invalid_method", "must be 'POST'", "method")
        if line.get("url", self._endpoint) != self._endpoint:
            raise _Fault("mismatched_endpoint", f"must be the batch's endpoint, '{self._endpoint}'", "url")
        if not isinstance(line.get("body"), dict):
            raise _Fault("invalid_body", "must be an object", "body")

    def _check_body(self, body: dict[str, Any]) -> None:
        for name in ("stream", "background"):
            if body.get(name):
                raise _Fault("invalid_body", "not in a batch", f"body.{name}")
        model = body.get("model")
        if isinstance(model, str) and self._endpoint != MESSAGES:
            self._model = self._model or model
            if model != self._model and not self._has_many_models:
                raise _Fault("mismatched_model", f"must be '{self._model:.64}' in all lines", "body.model")


def _parse(text: bytes) -> dict[str, Any]:
    try:
        check_json(text)
        line = orjson.loads(text)
    except (orjson.JSONDecodeError, InvalidRequest) as error:
        raise _Fault("invalid_json_line", f"the line is not valid JSON: {error}") from None
    if not isinstance(line, dict):
        raise _Fault("invalid_json_line", "the line must be a JSON object")
    return line


def _prefixes(body: dict[str, Any]) -> bytes:
    """Return hashes of the model and of the beginnings of a prompt: sorted by them, lines with the longest
    common ones are neighbours."""
    text = orjson.dumps([body.get(name) for name in _ABOUT])
    model = orjson.dumps(body.get("model"))
    return b"".join(xxhash.xxh64_digest(part) for part in (model, *(text[:n] for n in _PREFIXES)))
