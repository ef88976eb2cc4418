"""The desk where media are encoded, with a projector that can be made to wait."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from functools import partial

import msgspec
import numpy as np
import pytest

from corral.core.chunk import MediaRows
from corral.core.errors import CorralError, InvalidRequest, Unavailable
from corral.core.media import MediaRun, key_of, runs_in
from corral.core.media_item import MediaKind
from corral.engine.media import MediaEncoder
from corral.engine.prompt_media import PromptMedia
from tests.tools.pictures import described_of, is_closed, media_of, noise
from tests.tools.wait import wait_until
from tests.unit.action_harness import SECONDS
from tests.unit.fake_projector import BROKEN, MARK, N_PIECES, UNREADABLE, FakeProjector

TEXT = [1] * 10
ROW_BYTES = 16

SMALL, OTHER, THIRD = noise(1, 8, 8), noise(2, 8, 8), noise(3, 8, 8)  # four tokens each
FIRST = noise(4, 8, 8)  # what the projector is at while others wait
BAD = noise(5, BROKEN, 8)
TALL = noise(6, 8, 20)


class Steady(FakeProjector):
    """Counts its pieces, of which a picture has many, and knows when it is at one."""

    def __init__(self, n_pieces: int = 20000) -> None:
        super().__init__()
        self.n_pieces = 0
        self.is_working = False
        self._n_most = n_pieces

    def encode(self, media, go_on):
        def look() -> bool:
            self.is_working = False
            may_go_on = go_on()
            self.is_working = True
            self.n_pieces += 1
            return may_go_on

        while self.n_pieces < self._n_most:
            if not look():
                return
        yield from super().encode(media, look)
        self.is_working = False


class EncoderHarness:
    """A desk, and everything it has failed."""

    def __init__(self, projector: FakeProjector | None = None, n_bytes: int = 0) -> None:
        self.projector = projector or FakeProjector()
        self.n_wakes = 0
        self.desk = MediaEncoder(self.projector, n_bytes, self._wake)
        self.failed: list[tuple[PromptMedia, CorralError]] = []

    @property
    def is_waiting(self) -> bool:
        """Whether there is work, and nothing to collect yet."""
        return self.desk.has_work and self.desk._outcomes.empty()

    def _wake(self) -> None:
        self.n_wakes += 1

    def prompt(self, *pictures) -> PromptMedia:
        """An opened prompt: text, pictures, text."""
        media, fd = media_of(pictures)
        (opened,) = self.desk.open(fd, self.described(media))
        return opened

    def described(self, media) -> tuple[list, np.ndarray]:
        runs = [self.projector.layout_media(medium) for medium in media]
        tokens = np.array([*TEXT, *(token for run in runs for token in run), *TEXT], np.int32)
        counts = [len(runs_in(np.array(run, np.int32))) for run in runs]
        return [
            msgspec.structs.replace(medium, n_runs=n) for medium, n in zip(media, counts, strict=True)
        ], tokens

    def want(self, *pictures) -> PromptMedia:
        media = self.prompt(*pictures)
        self.desk.want(media, 0)
        return media

    def collect_until(self, condition) -> None:
        def is_so() -> bool:
            self.failed += self.desk.collect()
            return condition()

        wait_until(is_so)

    def finish(self) -> None:
        """Until there is nothing left to do."""
        self.collect_until(lambda: not self.desk.has_work)

    def hold(self) -> PromptMedia:
        """Keep the projector at a picture, so that others have to wait."""
        n = len(self.projector.encoded)
        self.projector.gate.clear()
        media = self.want(FIRST)
        wait_until(lambda: len(self.projector.encoded) > n)
        return media

    @property
    def n_encoded(self) -> int:
        """Pictures whose encoding was begun."""
        return sum(map(len, self.projector.encoded))

    def close(self) -> None:
        self.projector.gate.set()
        self.desk.go_on()
        for pool in (self.desk._encoding, self.desk._layouts):
            pool.shutdown()


def encoded_of(media: PromptMedia, run: MediaRun) -> MediaRows | None:
    return media.segment(run.start).encoded


def digest_of(pixels) -> bytes:
    return described_of(pixels)[0].digest


@pytest.fixture
def make():
    labs: list[EncoderHarness] = []

    def make_lab(projector: FakeProjector | None = None, n_bytes: int = 0) -> EncoderHarness:
        labs.append(EncoderHarness(projector, n_bytes))
        return labs[-1]

    yield make_lab
    for lab in labs:
        lab.close()


@pytest.fixture
def lab(make):
    return make()


# Which tokens media become


def test_media_are_arranged_in_their_order(lab):
    media = described_of(SMALL, TALL)
    first, second = lab.desk.layout_media(media).result(SECONDS)
    assert [first, second] == [lab.projector.layout_media(medium) for medium in media]
    assert first[0] == MARK
    assert len(runs_in(np.array(second, np.int32))) == 2


def test_nothing_is_arranged_of_nothing(lab):
    assert lab.desk.layout_media([]).result(SECONDS) == []


def test_arranging_goes_on_while_a_picture_is_encoded(lab):
    lab.hold()
    media = described_of(SMALL)
    assert lab.desk.layout_media(media).result(SECONDS)


@pytest.mark.parametrize(
    ("array", "message"),
    [(noise(7, UNREADABLE, 8), "unlucky"), (np.zeros(100, np.float32), "takes no audio")],
)
def test_what_cannot_be_arranged_is_an_error(lab, array, message):
    media = described_of(SMALL, array)
    with pytest.raises(InvalidRequest, match=message):
        lab.desk.layout_media(media).result(SECONDS)


def test_an_error_says_which_one_cannot_be_arranged(lab):
    media = described_of(SMALL, noise(7, UNREADABLE, 8))
    with pytest.raises(InvalidRequest, match="image 2: "):
        lab.desk.layout_media(media).result(SECONDS)


# The media of a prompt


def test_parts_of_a_prompt(lab):
    media = lab.prompt(SMALL, TALL)
    tokens = lab.described(described_of(SMALL, TALL))[1]
    assert [run.end - run.start for run in media.runs] == [4, 10, 10]
    for at in range(len(tokens)):
        piece = media.segment(at)
        assert (piece.at, piece.n) == (at, piece.end - at)
        assert at < piece.end <= len(tokens)
        same = tokens[at : piece.end] < 0
        assert same.all() or not same.any()
        assert piece.is_stalled == piece.is_alone == (tokens[at] < 0)
        if piece.run is None:
            assert piece.end == len(tokens) or tokens[piece.end] < 0
        else:
            assert piece.run in media.runs
            assert piece.run.start <= at < piece.run.end == piece.end
        assert piece.rows(1) is None
        assert piece.origin == at
    assert media.segment(len(tokens)).n == 0


@pytest.mark.parametrize("is_causal", [False, True])
def test_pieces_of_a_picture_are_the_rows_that_are_left(make, is_causal):
    lab = make(FakeProjector(is_causal=is_causal))
    media = lab.want(TALL)
    lab.finish()
    rows = np.resize(TALL.ravel(), (10, 4))
    for run in media.runs:
        for at in range(run.start, run.end):
            piece = media.segment(at)
            assert not piece.is_stalled
            assert piece.is_alone
            assert piece.is_whole == (not is_causal)
            assert not piece.is_in_flat
            for n in range(1, piece.n + 1):
                assert piece.rows(n).rows.tolist() == rows[at - run.start :][:n].tolist()


def test_only_what_comes_later_is_missing(lab):
    media = lab.prompt(SMALL, OTHER)
    first, second = media.runs
    assert [len(media.missing(at)) for at in (0, first.end - 1, first.end, second.end)] == [2, 2, 1, 0]
    lab.desk.want(media, first.end)
    lab.finish()
    assert lab.projector.encoded == [[digest_of(OTHER)]]
    assert encoded_of(media, first) is None
    assert encoded_of(media, second) is not None


def test_a_prompt_that_does_not_go_together_with_its_media_is_refused(lab):
    for n_runs in (0, 2):
        media, fd = media_of([SMALL])
        (medium,), tokens = lab.described(media)
        with pytest.raises(InvalidRequest, match="does not match"):
            lab.desk.open(fd, ([msgspec.structs.replace(medium, n_runs=n_runs)], tokens))
        assert is_closed(fd)


# Files


def test_a_file_is_closed_once_it_is_read(lab):
    media, fd = media_of([SMALL, OTHER])
    described = lab.described(media)
    first, second = lab.desk.open(fd, described, described)
    assert is_closed(fd)
    for prompt in (first, second):
        assert bytes(prompt.samples(described[0][0])) == SMALL.tobytes()
        assert bytes(prompt.samples(described[0][1])) == OTHER.tobytes()


def test_a_file_that_is_cut_off_is_refused_and_closed(lab):
    media, fd = media_of([SMALL, OTHER])
    os.ftruncate(fd, SMALL.nbytes + OTHER.nbytes - 1)
    with pytest.raises(CorralError, match="incomplete"):
        lab.desk.open(fd, lab.described(media))
    assert is_closed(fd)


def test_what_is_no_file_is_refused_and_closed(lab):
    described = lab.described(described_of(SMALL))
    empty, path = tempfile.mkstemp()
    os.unlink(path)
    readable, writable = os.pipe()
    os.close(writable)
    for fd in (empty, readable):
        with pytest.raises(CorralError, match="cannot be read"):
            lab.desk.open(fd, described)
        assert is_closed(fd)


def test_a_file_that_did_not_arrive_is_refused(lab):
    media = described_of(SMALL)
    with pytest.raises(Unavailable):
        lab.desk.open(-1, lab.described(media))


def test_no_file_stays_open_behind_a_prompt(lab):
    """What holds the bytes in memory has a descriptor too."""
    before = set(os.listdir("/proc/self/fd"))
    media = lab.want(SMALL)
    lab.finish()
    media.close()
    del media
    lab.failed.clear()
    wait_until(lambda: set(os.listdir("/proc/self/fd")) <= before)


def test_without_a_projector_the_error_names_its_option():
    desk = MediaEncoder(None)
    media, fd = media_of([SMALL])
    with pytest.raises(InvalidRequest, match="--mmproj"):
        desk.layout_media(media)
    with pytest.raises(InvalidRequest, match="--mmproj"):
        desk.open(fd, (media, np.array(TEXT, np.int32)))
    assert is_closed(fd)
    assert not desk.has_work


# Encoding


def test_a_picture_is_encoded_and_handed_out(lab):
    media = lab.prompt(SMALL)
    (run,) = media.runs
    assert not lab.desk.has_work
    assert not lab.is_waiting
    lab.projector.gate.clear()
    lab.desk.want(media, 0)
    assert lab.desk.has_work
    assert lab.is_waiting
    assert lab.desk.collect() == []
    assert media.segment(run.start).is_stalled
    lab.projector.gate.set()
    wait_until(lambda: not lab.is_waiting)
    assert encoded_of(media, run) is None, "only collect may hand it out"
    lab.finish()
    encoded = encoded_of(media, run)
    assert encoded.rows.tolist() == np.resize(SMALL.ravel(), (4, 4)).tolist()
    assert not media.segment(run.start).is_stalled
    assert media.missing(0) == {}
    assert not lab.is_waiting
    assert lab.failed == []


def test_each_picture_gets_its_own_rows(lab):
    media = lab.want(SMALL, TALL, OTHER)
    lab.finish()
    for run, pixels in zip(media.runs, (SMALL, TALL, TALL, OTHER), strict=True):
        n = run.end - run.start
        assert encoded_of(media, run).rows.tolist() == np.resize(pixels.ravel(), (n, 4)).tolist()
    assert lab.n_encoded == 3


def test_it_wakes_whoever_sleeps(lab):
    lab.want(SMALL)
    wait_until(lambda: lab.n_wakes >= 2)  # what has come, and the end
    lab.finish()


def test_nobody_is_waited_for_without_something_to_encode(lab):
    media = lab.prompt(SMALL)
    lab.desk.want(media, media.runs[-1].end)
    assert not lab.desk.has_work
    assert lab.projector.encoded == []


def test_wanting_again_and_again_encodes_once(lab):
    media = lab.prompt(SMALL, SMALL, OTHER)
    lab.projector.gate.clear()
    for _ in range(5):
        lab.desk.want(media, 0)
    lab.projector.gate.set()
    lab.finish()
    assert lab.n_encoded == 2
    assert all(encoded_of(media, run) is not None for run in media.runs)


def test_prompts_that_show_the_same_picture_share_its_encoding(lab):
    lab.projector.gate.clear()
    prompts = [lab.want(SMALL), lab.want(OTHER, SMALL), lab.want(SMALL, SMALL)]
    lab.projector.gate.set()
    lab.finish()
    assert sorted(digest for digests in lab.projector.encoded for digest in digests) == sorted(
        {digest_of(SMALL), digest_of(OTHER)}
    )
    for media in prompts:
        assert media.missing(0) == {}


def test_what_is_closed_is_gone(lab):
    media = lab.want(SMALL)
    lab.finish()
    media.close()
    assert encoded_of(media, media.runs[0]) is None


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_those_that_wait_are_handed_over_together(make, batch):
    lab = make(FakeProjector(batch=batch))
    lab.hold()
    pictures = [noise(20 + i, 8, 8) for i in range(10)]
    prompts = [lab.want(pixels) for pixels in pictures]
    lab.projector.gate.set()
    lab.finish()
    digests = [digest_of(pixels) for pixels in pictures]
    parts = [digests[:8][i : i + batch] for i in range(0, 8, batch)]
    rest = [digests[8:][i : i + batch] for i in range(0, 2, batch)]
    assert lab.projector.encoded == [[digest_of(FIRST)], *parts, *rest]
    for media in prompts:
        assert media.missing(0) == {}


# What is kept


def shows_again(lab, *pictures) -> int:
    """How many pictures had to be encoded for another prompt with these."""
    n = lab.n_encoded
    media = lab.want(*pictures)
    lab.finish()
    assert media.missing(0) == {}
    return lab.n_encoded - n


def test_without_room_nothing_is_kept(make):
    lab = make(n_bytes=0)
    assert [shows_again(lab, SMALL) for _ in range(3)] == [1, 1, 1]


def test_a_picture_that_is_kept_needs_no_projector(make):
    lab = make(n_bytes=8 * ROW_BYTES)
    assert [shows_again(lab, SMALL) for _ in range(3)] == [1, 0, 0]
    media = lab.want(SMALL)
    assert not lab.desk.has_work
    assert media.missing(0) == {}


def test_what_was_used_last_stays(make):
    lab = make(n_bytes=8 * ROW_BYTES)  # of two pictures
    assert [shows_again(lab, pixels) for pixels in (SMALL, OTHER, SMALL)] == [1, 1, 0]
    assert shows_again(lab, THIRD) == 1
    assert shows_again(lab, SMALL) == 0
    assert shows_again(lab, OTHER) == 1
    assert shows_again(lab, THIRD) == 1


def test_one_byte_too_few_is_too_few(make):
    lab = make(n_bytes=8 * ROW_BYTES - 1)
    assert [shows_again(lab, pixels) for pixels in (SMALL, OTHER, OTHER, SMALL)] == [1, 1, 0, 1]


def test_a_picture_of_which_only_a_part_is_kept_is_encoded_again(make):
    lab = make(n_bytes=10 * ROW_BYTES)  # one of its two runs
    assert [shows_again(lab, TALL) for _ in range(2)] == [1, 1]


def test_a_picture_that_cannot_be_kept_drives_nothing_out(make):
    lab = make(n_bytes=8 * ROW_BYTES)
    assert [shows_again(lab, pixels) for pixels in (SMALL, noise(8, 16, 16))] == [1, 1]
    assert shows_again(lab, SMALL) == 0


# Those who leave


def test_an_encoding_stops_when_nobody_wants_it(lab):
    media = lab.hold()
    media.close()
    lab.projector.gate.set()
    lab.finish()
    assert lab.projector.n_stopped == 1
    assert lab.failed == []
    assert encoded_of(media, media.runs[0]) is None
    again = lab.want(FIRST)
    lab.finish()
    assert lab.n_encoded == 2
    assert again.missing(0) == {}


def test_an_encoding_goes_on_for_those_who_stay(lab):
    first = lab.hold()
    second = lab.want(FIRST)
    first.close()
    lab.projector.gate.set()
    lab.finish()
    assert (lab.n_encoded, lab.projector.n_stopped) == (1, 0)
    assert second.missing(0) == {}


def test_what_nobody_wants_any_more_is_not_begun(lab):
    lab.hold()
    left, stayed = lab.want(SMALL), lab.want(OTHER)
    left.close()
    lab.projector.gate.set()
    lab.finish()
    assert lab.projector.encoded == [[digest_of(FIRST)], [digest_of(OTHER)]]
    assert stayed.missing(0) == {}


def test_one_who_comes_while_an_encoding_stops_gets_it_in_the_end(lab):
    """As the engine does it: everybody asks again in every step."""
    lab.hold().close()
    lab.projector.gate.set()
    wait_until(lambda: not lab.is_waiting)
    late = lab.want(FIRST)  # the end of the other one was not collected yet

    def has_come() -> bool:
        lab.desk.want(late, 0)
        return not late.missing(0)

    lab.collect_until(has_come)


class Halting(FakeProjector):
    """Waits before the second of pictures that it got together."""

    def encode(self, media, go_on):
        for encoded in super().encode(media, go_on):
            yield encoded
            if len(media) > 1:
                self.gate.clear()


def test_an_encoding_stops_although_others_of_its_batch_were_served(make):
    lab = make(Halting())
    lab.hold()
    served, left = lab.want(SMALL), lab.want(OTHER)
    lab.projector.gate.set()
    wait_until(lambda: len(lab.projector.encoded) == 3)
    lab.collect_until(lambda: not served.missing(0))
    left.close()
    lab.projector.gate.set()
    lab.finish()
    assert lab.projector.n_stopped == 1


# What goes wrong


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_broken_picture_fails_only_its_own_prompt(make, batch, at):
    lab = make(FakeProjector(batch=batch))
    held = lab.hold()
    pictures = [SMALL, OTHER]
    pictures.insert(at, BAD)
    prompts = [lab.want(pixels) for pixels in pictures]
    lab.projector.gate.set()
    lab.finish()
    ((failed, error),) = lab.failed
    assert failed is prompts[at]
    assert "it is broken" in error.message
    for media in (held, *prompts[:at], *prompts[at + 1 :]):
        assert media.missing(0) == {}


def test_a_broken_picture_costs_those_before_it_nothing(lab):
    lab.hold()
    for pixels in (SMALL, BAD, OTHER):
        lab.want(pixels)
    lab.projector.gate.set()
    lab.finish()
    begun = [digest for digests in lab.projector.encoded for digest in digests]
    assert begun.count(digest_of(SMALL)) == 1


def test_all_who_show_a_broken_picture_are_told(lab):
    lab.projector.gate.clear()
    prompts = [lab.want(BAD), lab.want(BAD, SMALL)]
    lab.projector.gate.set()
    lab.finish()
    assert {id(media) for media, _ in lab.failed} == {id(media) for media in prompts}
    assert len(lab.failed) == 2


def test_a_picture_that_failed_is_tried_again_for_the_next_one(lab):
    lab.want(BAD)
    lab.finish()
    lab.want(BAD)
    lab.finish()
    assert len(lab.failed) == 2
    assert lab.n_encoded == 2


def test_an_error_of_the_projector_itself_is_not_the_end(lab, capsys):
    encode = lab.projector.encode
    lab.projector.encode = lambda media, go_on: 1 / 0
    media = lab.want(SMALL)
    lab.finish()
    ((failed, error),) = lab.failed
    assert failed is media
    assert error.message == "internal engine error (ZeroDivisionError)"
    assert "ZeroDivisionError" in capsys.readouterr().err
    lab.projector.encode = encode
    assert lab.desk.heartbeat().decode_ms == 0
    again = lab.want(SMALL)
    lab.finish()
    assert again.missing(0) == {}


# Turns


def test_while_it_is_paused_nothing_is_encoded(make):
    projector = Steady()
    lab = make(projector)

    def has_worked(n_before: int) -> bool:
        return projector.n_pieces > n_before or not lab.is_waiting

    lab.want(SMALL)
    for _ in range(20):
        wait_until(partial(has_worked, projector.n_pieces))
        lab.desk.pause()
        n = projector.n_pieces
        assert not projector.is_working
        assert lab.desk.heartbeat().decode_ms == 0
        time.sleep(0.001)
        assert projector.n_pieces == n
        lab.desk.go_on()
    lab.finish()


def test_what_is_wanted_during_a_pause_waits_for_its_end(make):
    projector = Steady(10)
    lab = make(projector)
    lab.desk.pause()
    media = lab.want(SMALL)
    time.sleep(0.01)
    assert projector.n_pieces == 0
    assert lab.is_waiting
    lab.desk.go_on()
    lab.finish()
    assert media.missing(0) == {}


def test_a_pause_lasts_until_the_piece_under_way_is_done(lab):
    """Else both would use the same cores."""
    lab.hold()
    looks = []
    projector, wait = lab.projector, lab.projector.gate.wait
    projector.gate.set()
    lab.finish()

    def hold_later(timeout=None):
        looks.append(None)
        if len(looks) == 2:
            projector.gate.clear()
        return wait(timeout)

    projector.gate.wait = hold_later
    media = lab.want(SMALL)
    wait_until(lambda: len(looks) == 2)  # it has begun a piece, and cannot end it
    wait_until(lambda: lab.desk.heartbeat().decode_ms > 0)
    pausing = threading.Thread(target=lab.desk.pause)
    pausing.start()
    pausing.join(0.05)
    assert pausing.is_alive()
    projector.gate.set()
    pausing.join(SECONDS)
    assert not pausing.is_alive()
    assert lab.desk.heartbeat().decode_ms == 0
    assert media.missing(0)
    lab.desk.go_on()
    lab.finish()


def test_a_slice_of_time_ends_in_a_pause(make):
    projector = Steady()
    lab = make(projector)
    lab.desk.pause()
    media = lab.want(SMALL)
    n_slices = 0
    while lab.is_waiting:
        n_slices += 1
        assert n_slices < 1e6
        lab.desk.go_on_for(0.2)
        n = projector.n_pieces
        assert not projector.is_working
        time.sleep(0.0002)
        assert projector.n_pieces == n
    lab.finish()
    assert media.missing(0) == {}


def test_a_slice_ends_with_the_work(make):
    lab = make(Steady(100))
    lab.desk.pause()
    lab.want(SMALL)
    wait_until(lambda: lab.desk._slicer._is_engaged)
    lab.desk.go_on_for(1e3 * 1e6)  # or the test would not end today
    lab.finish()


def test_with_nothing_to_do_a_slice_is_none(lab):
    lab.desk.pause()
    lab.desk.go_on_for(1e9)
    media = lab.want(SMALL)
    time.sleep(0.005)
    assert lab.desk.collect() == []
    assert media.missing(0)


@pytest.mark.usefixtures("busy_interpreter")
def test_a_slice_without_time_is_a_piece_at_least(lab):
    lab.desk.pause()
    lab.want(SMALL)
    wait_until(lambda: lab.desk._slicer._is_engaged)
    for _ in range(10 * N_PIECES):
        lab.desk.go_on_for(-1.0)
    assert not lab.is_waiting


def test_beats_are_zero_while_nothing_is_encoded(lab):
    assert lab.desk.heartbeat().decode_ms == 0
    lab.want(SMALL)
    lab.finish()
    wait_until(lambda: lab.desk.heartbeat().decode_ms == 0)
    lab.projector.gate.clear()
    lab.want(OTHER)
    assert lab.desk.heartbeat().decode_ms == 0, "it has not begun"


def test_keys_tell_what_is_encoded(lab):
    media = lab.want(SMALL)
    lab.finish()
    tokens = lab.described(described_of(SMALL))[1]
    (run,) = media.runs
    media.close()
    assert list(media.missing(0)) == [key_of(tokens[run.start : run.end])]


def test_sounds_are_media_too(make):
    lab = make(FakeProjector([MediaKind.IMAGE, MediaKind.AUDIO]))
    sound = np.arange(50, dtype=np.float32)
    media = lab.want(sound, SMALL)
    lab.finish()
    rows = encoded_of(media, media.runs[0]).rows
    assert rows.tolist() == np.resize(np.frombuffer(sound.tobytes(), np.uint8), (8, 4)).tolist()
