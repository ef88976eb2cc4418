"""Results of lines, as OpenAI's and Anthropic's batches write them."""

from __future__ import annotations

from typing import Any

import orjson

from corral.api.internal import Answer
from corral.features.batches.line import MESSAGES, Line
from corral.storage.batch_record import Outcome, Result, new_id
from corral.telemetry.record import RequestRecord
from corral.telemetry.usage import usage_of

_ENDS = {
    Outcome.CANCELED: ("batch_cancelled", "the batch was cancelled before this line was run"),
    Outcome.EXPIRED: ("batch_expired", "the batch expired before this line was run"),
}


class LineAnswer(Answer):
    """Mutable: the answer to a line, and the record of its request."""

    def __init__(self, record: RequestRecord) -> None:
        super().__init__()
        self.record = record


def render_result(endpoint: str, line: Line, answer: LineAnswer) -> Result:
    """Render the answer to a line."""
    outcome = Outcome.OK if answer.status == 200 else Outcome.ERROR
    body = orjson.Fragment(answer.body)
    if endpoint == MESSAGES:
        ok, bad = {"type": "succeeded", "message": body}, {"type": "errored", "error": body}
        result = ok if outcome is Outcome.OK else bad
        text = orjson.dumps({"custom_id": line.custom_id, "result": result})
    else:
        response = {"status_code": answer.status, "request_id": answer.record.id, "body": body}
        error = None if outcome is Outcome.OK else _error_of(answer.body)
        text = _openai(line.custom_id, response, error)
    usage = usage_of(answer.record.tasks)
    return Result(line.number, outcome, text, usage.n_input, usage.n_cached, usage.n_output)


def render_unrun(endpoint: str, line: Line, outcome: Outcome) -> Result:
    """Render the result of a line that was never run."""
    if endpoint == MESSAGES:
        text = orjson.dumps({"custom_id": line.custom_id, "result": {"type": outcome.name.lower()}})
        return Result(line.number, outcome, text)
    code, message = _ENDS[outcome]
    return Result(line.number, outcome, _openai(line.custom_id, None, {"code": code, "message": message}))


def _openai(custom_id: str, response: Any, error: Any) -> bytes:
    line = {"id": new_id("batch_req_"), "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(line)


def _error_of(body: bytes) -> dict[str, Any]:
    error = orjson.loads(body)["error"]
    return {"code": str(error.get("code") or error["type"]), "message": error["message"]}
