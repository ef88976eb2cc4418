"""Receipts: signed statements of what was evaluated, from which the same answer can be evaluated again.

A receipt has the model's hash, the build, the parameters, the hash of the prompt, and the tokens. `task` is
all of it for the engine, but without the server's system prompt. The signature is the server's own (HMAC).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from corral.api.choice import Choice
from corral.api.render.native import render_generation_settings
from corral.core.answer_id import now
from corral.core.build import BUILD
from corral.core.client import Client
from corral.core.errors import ContextExceeded, CorralError, InvalidRequest
from corral.core.result import StopType
from corral.core.task import Task

KEY_BYTES = 32
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_decode_task = msgspec.msgpack.Decoder(Task).decode
_CUT_SHORT = (StopType.CONTROL, StopType.NONE)


class ReceiptKey:
    """The secret that receipts are signed with, in a file that is made if it is missing."""

    def __init__(self, path: str) -> None:
        try:
            if not os.path.exists(path):
                _make_key(path)
            with open(path, "rb") as file:
                self._key = bytes.fromhex(file.read(1024).decode().strip())
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a key"
            raise CorralError(f"--receipt-key '{path}' cannot be used: {reason}") from None
        if len(self._key) < KEY_BYTES:
            raise CorralError(f"--receipt-key '{path}' cannot be used: the key is too short")

    def sign(self, receipt: dict[str, Any]) -> str:
        signed = orjson.dumps(_canonical({**receipt, "signature": None}), option=orjson.OPT_SORT_KEYS)
        return "hmac-sha256:" + hmac.new(self._key, signed, hashlib.sha256).hexdigest()

    def accepts(self, receipt: Any) -> bool:
        """Whether it is a receipt with this key's signature; may take a while."""
        signature = receipt.get("signature") if isinstance(receipt, dict) else None
        return isinstance(signature, str) and hmac.compare_digest(
            signature.encode("utf-8", "replace"), self.sign(receipt).encode()
        )


@dataclass(frozen=True, slots=True)
class Signer:
    """Makes the receipts of one request."""

    key: ReceiptKey
    model: str
    model_sha256: str

    def __call__(self, choice: Choice) -> dict[str, Any]:
        task, done = choice.task, choice.ended
        receipt = {
            "object": "receipt",
            "version": 1,
            "created": now(),
            "model": self.model,
            "model_sha256": self.model_sha256,
            "build": BUILD,
            "seed": task.params.sampling.seed,
            "settings": render_generation_settings(task.params, stream=False, timings_per_token=False),
            "n_prompt": len(task.prompt),
            "prompt_sha256": hash_tokens(task.prompt),
            "tokens": list(choice.tokens),
            "stop_type": done.stop_type.value,
            "task": _encode_task(task),
            "signature": None,
        }
        return {**receipt, "signature": self.key.sign(receipt)}


def read_task(receipt: dict[str, Any], system: Sequence[int], n_ctx: int, client: Client) -> Task:
    """Return the task of a receipt whose signature is right, for a client that wants it evaluated again."""
    task = _decode_task(base64.b64decode(receipt["task"]))
    prompt = [*(system if task.params.n_system else ()), *task.prompt]
    if hash_tokens(prompt) != receipt["prompt_sha256"]:
        raise InvalidRequest("the server has another system prompt now", field="prompt_sha256")
    if len(prompt) >= n_ctx:
        raise ContextExceeded(len(prompt), n_ctx)
    params = msgspec.structs.replace(task.params, id_slot=-1, max_queue_ms=-1, priority=0, t_max_predict_ms=0)
    if StopType(receipt["stop_type"]) in _CUT_SHORT or task.params.t_max_predict_ms > 0:
        params = msgspec.structs.replace(params, n_predict=len(receipt["tokens"]))
    return msgspec.structs.replace(
        task, prompt=prompt, params=params, client=client.id, weight=client.weight, tenant=client.tenant
    )


def _make_key(path: str) -> None:
    """Write a new key, which is whole as soon as other servers see it; one of theirs stays."""
    pending = f"{path}.{secrets.token_hex(8)}"
    with os.fdopen(os.open(pending, _CREATE, 0o600), "wb") as file:
        file.write(secrets.token_hex(KEY_BYTES).encode() + b"\n")
    try:
        os.link(pending, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(pending)


def hash_tokens(tokens: Sequence[int]) -> str:
    return hashlib.sha256(array("i", tokens).tobytes()).hexdigest()


def _canonical(value: Any) -> Any:
    """Return the value with one form of each number: some clients write 1.0 as 1."""
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _encode_task(task: Task) -> str:
    own = task.prompt[task.params.n_system :]
    bare = Task(prompt=own, params=task.params)
    return base64.b64encode(msgspec.msgpack.encode(bare)).decode()
