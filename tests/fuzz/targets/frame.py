"""Frames of the link: commands for the engine, events from it, tables and tokens of the tokenizer."""

from __future__ import annotations

import contextlib

import msgspec

from corral.core.errors import ContextExceeded
from corral.core.params import GenerationParams, SamplingParams
from corral.core.result import Done, Failed, StopType, Timings, TokenProb, TokenProbs, Tokens
from corral.core.task import Cancel, Task
from corral.core.top_probs import TopProbs
from corral.link import frame
from corral.link.frame import DAMAGED, FrameAssembler, encode_frame
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target

_DECODERS = (
    frame.decode_command,
    frame.decode_settings,
    frame.decode_vocab_file,
    frame.decode_vocab,
    frame.decode_segments,
    frame.decode_tokens,
    frame.decode_events,
)
_TIMINGS = Timings(cache_n=1, prompt_n=2, prompt_ms=3.5, predicted_n=4, predicted_ms=5.5)
_PROBS = [TokenProbs(TokenProb(1, 0.5), TopProbs.of([TokenProb(2, 0.25), TokenProb(3, 0.125)]))]
_PARAMS = GenerationParams(sampling=SamplingParams(seed=7, logit_bias=((3, 1.5),)))


def parse(data: bytes) -> None:
    """Assemble the frames and decode each as everything it may be; one of these must be right."""
    assembler = FrameAssembler()
    bodies = assembler.feed(data[:3]) + assembler.feed(data[3:])
    n_right = sum(_decode(body) for body in bodies)
    if n_right < max(1, len(bodies)):
        raise msgspec.DecodeError


def _decode(body: bytes) -> bool:
    n_right = 0
    for decode in _DECODERS:
        with contextlib.suppress(*DAMAGED):
            _read(decode(body))
            n_right += 1
    return n_right > 0


def _read(message: object) -> None:
    """Look at what is decoded late."""
    for event in message if isinstance(message, list) else []:
        for probs in event.probs if isinstance(event, Tokens) else []:
            list(probs.top)


SEEDS = [
    encode_frame(Task(id=1, prompt=[1, 2, 3], params=_PARAMS)),
    encode_frame(Cancel(task_id=1)),
    encode_frame([Tokens(task_id=1, tokens=[1, 2], text="é", probs=_PROBS, timings=_TIMINGS)]),
    encode_frame([Failed(2, ContextExceeded(10, 5).info())]),
    encode_frame(
        [
            Done(
                task_id=1,
                stop_type=StopType.WORD,
                stopping_word="x",
                truncated=True,
                has_new_line=False,
                n_past=3,
                timings=_TIMINGS,
            )
        ]
    ),
    encode_frame([(b"text", True, False)]) + encode_frame([b"\1\0\0\0"]),
]
WORDS = [b"\x91", b"\xc0", b"\xc4\x04", b"\xd9\xff", b"\xdd\xff\xff\xff\xff", b"\xcb\x7f\xf8" + bytes(6)]
TARGET = Target("frame", parse, SEEDS, mutated(SEEDS, WORDS), DAMAGED)
