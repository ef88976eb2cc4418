"""What goes over the link comes out the same."""

from __future__ import annotations

import itertools
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.chat.template import TemplateError
from corral.core.errors import (
    Conflict,
    ContextExceeded,
    CorralError,
    ErrorInfo,
    ForeignSlot,
    NonFiniteLogits,
    NoSuchSlot,
    Unauthorized,
    UnknownModel,
    error_classes,
)
from corral.core.params import GenerationParams, SamplingParams
from corral.core.result import Done, Failed, Heartbeat, StopType, Timings, TokenProb, TokenProbs, Tokens
from corral.core.settings import EngineSettings
from corral.core.task import Cancel, Task
from corral.core.top_probs import TopProbs
from corral.link.frame import (
    LENGTH_BYTES,
    BlockingChannel,
    FrameAssembler,
    decode_command,
    decode_events,
    decode_settings,
    encode_frame,
)
from corral.media.decoded import BadMedia

TIMINGS = Timings(cache_n=1, prompt_n=2, prompt_ms=3.5, predicted_n=4, predicted_ms=5.5)
SAMPLING = SamplingParams(seed=2**63, logit_bias=((3, float("-inf")),), penalty_prompt=(1, 2))
EVENTS = [
    Heartbeat(1.0, 2.0),
    Tokens(
        task_id=1,
        tokens=[1, 2],
        text="é",
        probs=[TokenProbs(TokenProb(1, 0.5), TopProbs.of([TokenProb(2, 0.25)]))],
        timings=TIMINGS,
    ),
    Done(
        task_id=1,
        stop_type=StopType.WORD,
        stopping_word="x",
        truncated=True,
        has_new_line=False,
        n_past=3,
        timings=TIMINGS,
    ),
    Failed(2, ContextExceeded(10, 5).info()),
]


def body(message):
    return encode_frame(message)[LENGTH_BYTES:]


def test_events():
    assert decode_events(body(EVENTS)) == EVENTS


@pytest.mark.parametrize(
    "order",
    [
        Task(id=1, prompt=[1, 2], params=GenerationParams(sampling=SAMPLING, stop=("a",)), resume=[5]),
        Cancel(3),
    ],
)
def test_orders(order):
    assert decode_command(body(order)) == order


def test_settings():
    settings = EngineSettings(model="m", n_ctx=5, context_shift=True)
    assert decode_settings(body(settings)) == settings


_CLASSES = [kind for kind in error_classes() if kind.__module__ == CorralError.__module__]
_ERRORS = {
    ContextExceeded: ContextExceeded(10, 5),
    NonFiniteLogits: NonFiniteLogits(),
    ForeignSlot: ForeignSlot(3),
    NoSuchSlot: NoSuchSlot(3, 2),
    Unauthorized: Unauthorized(),
    UnknownModel: UnknownModel("m"),
}


@pytest.mark.parametrize("kind", [*_CLASSES, BadMedia, TemplateError], ids=lambda kind: kind.__name__)
def test_an_error_keeps_its_class(kind):
    """Whatever its constructor takes."""
    sent = _ERRORS[kind] if kind in _ERRORS else kind("what is wrong", n=1)
    (event,) = decode_events(body([Failed(2, sent.info())]))
    assert isinstance(event, Failed)
    error = CorralError.from_info(event.error)
    assert type(error) is kind
    assert (error.status, error.type) == (sent.status, sent.type)
    assert (error.message, str(error), error.details) == (sent.message, str(sent), sent.details)


def test_an_error_that_is_known_only_to_the_engine_arrives_as_its_base():
    info = ErrorInfo(["OfTheEngine", "Conflict", "CorralError"], "busy")
    assert type(CorralError.from_info(info)) is Conflict


@given(st.lists(st.integers(0, 99), max_size=6), st.lists(st.integers(0, 200), max_size=6))
def test_frames_come_out_whole_however_the_bytes_were_cut(ids, places):
    data = b"".join(encode_frame(Cancel(id)) for id in ids)
    edges = [0, *sorted(min(p, len(data)) for p in places), len(data)]
    frames = FrameAssembler()
    bodies = [body for a, b in itertools.pairwise(edges) for body in frames.feed(data[a:b])]
    assert [decode_command(body) for body in bodies] == [Cancel(id) for id in ids]


def test_a_channel_reads_frames_and_notices_the_end():
    ours, theirs = socket.socketpair()
    our_parcels, their_parcels = socket.socketpair()
    channel = BlockingChannel(theirs, their_parcels)
    ours.sendall(encode_frame(Cancel(1)) + encode_frame(Cancel(2)))
    assert [decode_command(channel.receive()) for _ in range(2)] == [Cancel(1), Cancel(2)]
    channel.send([Heartbeat(0, 0)])
    assert decode_events(ours.recv(100)[LENGTH_BYTES:]) == [Heartbeat(0, 0)]
    socket.send_fds(our_parcels, [b"."], [ours.fileno()])
    with socket.socket(fileno=channel.receive_fd()) as same:
        assert same.getsockname() == ours.getsockname()
        assert same.fileno() != ours.fileno()
    ours.close()
    our_parcels.close()
    assert channel.receive() is None
    channel.close()
