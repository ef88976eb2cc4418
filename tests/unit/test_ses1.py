"""SES1 files, byte by byte: as seed 001 draws them, and refused unless they are as they were written."""

from __future__ import annotations

import contextlib
import os
import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import CorralError, InvalidRequest
from corral.engine.grouping import Grouping
from corral.engine.saved import NEVER, SavedState
from corral.engine.ses1 import Ses1, read_title
from tests.unit.ses1_files import (
    FINGERPRINT,
    N_SEAL,
    TOKENS,
    Port,
    either,
    file_of,
    read,
    refuses,
    sealed_again,
    write,
)


def saved_of(tokens, port=None, shifted_from=NEVER):
    return SavedState(np.array(tokens, np.int32), (port or Port()).state(tokens), shifted_from)


def unsealed(tokens, port=None) -> bytes:
    """As another program would write it from the drawing in the seed."""
    port = port or Port()
    head = struct.pack(f"<4sI{len(tokens)}i", b"SES1", len(tokens), *tokens)
    return head + b"".join(port.pack(port.state(tokens)))


FILE = write(saved_of(TOKENS, shifted_from=3))
EMPTY = write(saved_of([]))


# --- the drawing


def test_a_file_is_as_the_seed_draws_it_with_a_seal_at_the_end_of_the_variable_part():
    magic, n = struct.unpack_from("<4sI", FILE)
    assert (magic, n) == (b"SES1", 5)
    assert list(struct.unpack_from("<5i", FILE, 8)) == TOKENS
    kv_data, seal = FILE[28:-N_SEAL], FILE[-N_SEAL:]
    native = Port().state(TOKENS)
    assert (kv_data[:4], kv_data[8:]) == (native[:4], native[8 + 6 :])
    fingerprint, shifted_from, version, digest, last_word = struct.unpack("<16sII16s4s", seal)
    assert (fingerprint, shifted_from, version, last_word) == (FINGERPRINT, 3, 1, b"/SES")
    assert digest == xxhash.xxh3_128_digest(FILE[:-20])


def test_a_file_is_written_from_its_start_wherever_its_offset_is():
    with file_of(b"x" * 20) as fd:
        Ses1(Port(), Grouping()).write(fd, saved_of(TOKENS))
        assert os.pread(fd, 1 << 20, 0) == write(saved_of(TOKENS))


# --- round trips


@given(st.lists(st.integers(0, 63), max_size=16), st.integers(0, NEVER), st.integers(0, 9), st.booleans())
def test_what_was_written_is_read(tokens, shifted_from, growth, is_ours):
    """By a context of another shape too: what differs between them is not in the file."""
    port = Port(growth)
    again = read(write(saved_of(tokens, shifted_from=shifted_from)), is_ours, port)
    assert again.tokens.tolist() == tokens
    assert again.shifted_from == shifted_from
    state = port.state(tokens)
    assert (again.state[:4], again.state[8:]) == (state[:4], state[8:])
    assert port.trusted == [is_ours]  # a seal can be forged by whoever knows the format


@either
def test_an_empty_slot_is_a_file_too(is_ours):
    assert len(EMPTY) == 8 + 8 + N_SEAL
    assert len(read(EMPTY, is_ours).tokens) == 0


@either
def test_short_reads_and_writes_are_taken_up(monkeypatch, is_ours):
    write_whole, read_whole = os.write, os.preadv
    monkeypatch.setattr(os, "write", lambda fd, data: write_whole(fd, data[:3]))
    with os.fdopen(os.memfd_create("short"), "rb") as file:
        ses1 = Ses1(Port(), Grouping())
        assert ses1.write(file.fileno(), saved_of(TOKENS, shifted_from=3)) == len(FILE)
        assert os.pread(file.fileno(), 1000, 0) == FILE
        monkeypatch.setattr(os, "preadv", lambda fd, views, at: read_whole(fd, [views[0][:3]], at))
        assert ses1.read(file.fileno(), is_ours).tokens.tolist() == TOKENS


def test_a_state_is_checked_against_the_positions_of_grouped_tokens():
    port, grouping = Port(), Grouping(2, 4)
    grouped = port.state(TOKENS, [0, 0, 1, 1, 2])
    data = write(SavedState(np.array(TOKENS, np.int32), grouped), port, grouping)
    assert read(data, True, grouping=grouping).state[8:] == grouped[8:]
    refuses(data, True, match="--grp-attn")
    refuses(write(SavedState(np.array(TOKENS, np.int32), grouped), port), True, match="positions")


# --- damage


@either
def test_every_truncation_is_refused_and_every_continuation(is_ours):
    for whole in (FILE, EMPTY):
        for n in range(len(whole)):
            refuses(whole[:n], is_ours)
        for more in (b"\0", b"/SES", whole[-N_SEAL:], whole):
            refuses(whole + more, is_ours)


def test_without_its_seal_a_sealed_file_is_cut_off():
    refuses(FILE[:-N_SEAL], is_ours=False, match="truncated")


@either
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16, 32, 64, 128, 255])
def test_every_flipped_byte_is_refused(is_ours, bits):
    for whole in (FILE, EMPTY):
        for i in range(len(whole)):
            refuses(whole[:i] + bytes([whole[i] ^ bits]) + whole[i + 1 :], is_ours)


@either
@pytest.mark.parametrize(
    "damaged",
    [
        EMPTY[:12] + b"cRL1" + EMPTY[16:],
        write(saved_of([1, 2, 3, 4])).replace(b"SES1\x04", b"SES1\0", 1),
        struct.pack("<4sI", b"SES1", 0) + bytes(100),
    ],
    ids=["a flipped byte of an empty file", "a flipped bit of the count", "a state of no tokens"],
)
def test_a_file_without_tokens_has_no_state(is_ours, damaged):
    refuses(damaged, is_ours)


@given(st.data(), st.booleans())
def test_whatever_becomes_of_a_file_it_is_refused_or_still_says_the_same(data, is_ours):
    changed = bytearray(FILE)
    for _ in range(data.draw(st.integers(1, 3))):
        at, n = data.draw(st.integers(0, len(FILE))), data.draw(st.integers(0, 12))
        changed[at : at + n] = data.draw(st.binary(max_size=12))
    try:
        again = read(bytes(changed), is_ours)
    except InvalidRequest:
        return
    assert bytes(changed) == FILE
    assert again.tokens.tolist() == TOKENS


# --- sealed, but not for this server


@either
def test_a_state_of_another_model_is_refused(is_ours):
    refuses(write(saved_of(TOKENS), Port(fingerprint=bytes(16))), is_ours, match="another model")


@either
def test_more_tokens_than_a_slot_holds_are_refused(is_ours):
    small = Port(n_ctx=4)
    refuses(write(saved_of([1] * 5)), is_ours, small, match=r"5 tokens.*4")
    assert len(read(write(saved_of([1] * 4)), is_ours, small).tokens) == 4


@either
@pytest.mark.parametrize("token", [-1, -(2**30), 64, 2**31 - 1])
def test_tokens_that_no_vocabulary_has_are_refused(is_ours, token):
    refuses(write(saved_of([1, token, 2])), is_ours, match="outside this model's vocabulary")
    refuses(unsealed([1, token, 2]), False, match="outside this model's vocabulary")


@either
def test_another_version_is_refused(is_ours):
    other = FILE[:-24] + struct.pack("<I", 5) + FILE[-20:]
    refuses(sealed_again(other), is_ours, match="version 5")
    assert read(sealed_again(FILE), is_ours).tokens.tolist() == TOKENS


@either
def test_a_checksum_alone_does_not_open_the_door(is_ours):
    """Sealed by somebody who knows how: what is in the file is still no state of five tokens."""
    refuses(sealed_again(FILE[:28] + FILE[28:32] + b"CRL1" + bytes(8) + FILE[-N_SEAL:]), is_ours)


# --- without a seal


def test_a_file_made_by_hand_is_accepted_from_anybody_after_a_look_at_its_structure():
    port = Port()
    again = read(unsealed(TOKENS), False, port)
    assert again.tokens.tolist() == TOKENS
    assert again.state == port.state(TOKENS)
    assert again.shifted_from == NEVER
    assert port.trusted == [False]


def test_a_file_made_by_hand_is_none_of_ours():
    refuses(unsealed(TOKENS), True, match="was not saved by this server")


def test_a_file_made_by_hand_is_refused_unless_its_structure_is_right():
    data = unsealed(TOKENS)
    for n in range(len(data)):
        refuses(data[:n], False)
    refuses(data + b"\0", False)
    for i in (*range(4), *range(28, 32), 36, 44):  # both magics, positions
        refuses(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :], False)


def test_what_cannot_be_a_state_is_not_even_read():
    """A terabyte, without a byte of it."""
    with file_of(unsealed(TOKENS)) as fd:
        os.ftruncate(fd, 1 << 40)
        for is_ours in (True, False):
            with pytest.raises(InvalidRequest, match="5 tokens"):
                Ses1(Port(), Grouping()).read(fd, is_ours)


counts = st.sampled_from([0, 1, 2, 16, 17, 2**31 - 1, 2**31, 2**32 - 1])
garbage = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=200).map(b"SES1".__add__),
    st.builds(lambda n, rest: struct.pack("<4sI", b"SES1", n) + rest, counts, st.binary(max_size=200)),
    st.builds(
        lambda n, rest: struct.pack("<4sI", b"SES1", n) + bytes(4 * n) + rest,
        st.integers(0, 3),
        st.binary(max_size=99),
    ),
    st.builds(lambda rest: FILE[:28] + rest, st.binary(max_size=120)),
    st.builds(lambda rest: FILE[:28] + b"KVKVCRL1" + rest + b"/SES", st.binary(max_size=120)),
    st.builds(
        lambda rest: sealed_again(FILE[:28] + b"KVKVCRL1" + rest + FILE[-N_SEAL:]), st.binary(max_size=60)
    ),
)


@given(garbage, st.booleans())
def test_garbage_is_nothing_but_refused(data, is_ours):
    with contextlib.suppress(InvalidRequest):
        again = read(data, is_ours)
        assert not is_ours or data.endswith(b"/SES")
        assert len(again.tokens) <= 16
    with contextlib.suppress(InvalidRequest), file_of(data) as fd:
        read_title(fd)


def test_a_file_that_cannot_be_read_is_our_problem():
    with file_of() as fd:
        write_only = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
        os.write(write_only, FILE)
        try:
            with pytest.raises(CorralError, match="Bad file descriptor") as caught:
                Ses1(Port(), Grouping()).read(write_only, True)
        finally:
            os.close(write_only)
    assert caught.value.status == 500


# --- titles


def test_a_title_says_what_a_file_has():
    with file_of(FILE) as fd:
        title = read_title(fd)
    assert title.tokens.tolist() == TOKENS
    assert (title.shifted_from, title.fingerprint) == (3, FINGERPRINT)


def test_a_title_is_not_given_for_what_has_no_end():
    for data in (unsealed(TOKENS), *(FILE[:n] for n in range(len(FILE)))):
        with file_of(data) as fd, pytest.raises(InvalidRequest):
            read_title(fd)
