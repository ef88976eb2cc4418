"""States in anonymous files: reading, receiving, and decoding them from JSON."""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import os
import re
import resource
import subprocess
import sys
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import CorralError, InsufficientStorage, InvalidRequest, TooLarge
from corral.storage import blob as blob_module
from corral.storage.blob import Blob, decode_state, read_base64, read_pieces, receive

MIB = 1 << 20
BASE64 = re.compile(r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def blob_of(data):
    blob = Blob.create()
    blob.write(data)
    return blob


def bytes_of(blob):
    return b"".join(read_pieces(blob.fd, blob.n_bytes))


def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def descriptors():
    gc.collect()  # what other tests left
    return os.listdir("/proc/self/fd")


@contextlib.contextmanager
def pieces_of(n_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blob_module, "PIECE_BYTES", n_bytes)
        yield


def decode(text, max_json_bytes=MIB):
    with blob_of(text) as body, decode_state(body, max_json_bytes) as state:
        return bytes_of(state)


async def parts_of(*parts):
    for part in parts:
        yield part


# --- the file


def test_a_blob_grows_by_what_is_written_and_nobody_inherits_it():
    with Blob.create() as blob:
        assert blob.n_bytes == 0
        blob.write(b"abc")
        blob.write(b"")
        blob.write(bytes(70_000))
        assert blob.n_bytes == 70_003
        assert not os.get_inheritable(blob.fd)
        assert not os.get_inheritable(blob.duplicate().fd)


def test_closing_twice_closes_once():
    with blob_of(b"y") as other:
        blob = blob_of(b"x")
        number = blob.fd
        blob.close()
        assert not is_open(number)
        os.dup2(other.fd, number)
        blob.close()
        assert is_open(number)
        os.close(number)


def test_a_forgotten_blob_is_closed():
    blob = blob_of(b"x")
    fd = blob.fd
    del blob
    gc.collect()
    assert not is_open(fd)


def test_one_that_is_left_when_the_interpreter_ends_is_closed(monkeypatch):
    blob = blob_of(b"x")
    fd = blob.fd
    monkeypatch.setattr(blob_module, "os", None)  # as the interpreter does with what modules hold
    del blob
    assert not is_open(fd)


def test_a_duplicate_outlives_the_original():
    first = blob_of(b"abc")
    second = first.duplicate()
    first.close()
    with second:
        assert bytes_of(second) == b"abc"


def test_without_memory_files_it_is_a_file_without_a_name(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with blob_of(b"abc") as blob:
        assert os.fstat(blob.fd).st_dev == tmp_path.stat().st_dev
        assert os.fstat(blob.fd).st_nlink == 0
        assert list(tmp_path.iterdir()) == []
        assert bytes_of(blob) == b"abc"


def test_what_does_not_fit_is_refused():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Blob.create() as blob:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        try:
            with pytest.raises(InsufficientStorage, match="File too large"):
                blob.write(bytes(20_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert blob.n_bytes == 10_000  # the system wrote a part first


# --- reading


@given(st.binary(max_size=40), st.integers(1, 5))
def test_pieces_join_to_the_whole_and_the_offset_stays(data, n_groups):
    with pieces_of(3 * n_groups), blob_of(data) as blob:
        os.lseek(blob.fd, 7, os.SEEK_SET)
        pieces = list(read_pieces(blob.fd, len(data)))
        assert b"".join(pieces) == data
        assert all(len(piece) <= 3 * n_groups for piece in pieces)
        assert b"".join(read_base64(blob.fd, len(data))) == base64.b64encode(data)
        assert os.lseek(blob.fd, 0, os.SEEK_CUR) == 7


def test_base64_joins_at_the_real_piece_size_and_over_short_reads(monkeypatch):
    data = os.urandom(2 * blob_module.PIECE_BYTES + 1)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, offset: pread(fd, min(n, 10_000), offset))
    with blob_of(data) as blob:
        assert b"".join(read_base64(blob.fd, len(data))) == base64.b64encode(data)


def test_only_as_much_as_asked_for_is_read():
    with blob_of(b"abcdef") as blob:
        assert b"".join(read_pieces(blob.fd, 4)) == b"abcd"


def test_a_file_that_became_shorter_is_an_error_not_a_loop():
    with blob_of(b"abcdef") as blob, pytest.raises(CorralError, match="6 bytes"):
        list(read_pieces(blob.fd, 7))


# --- receiving


async def test_a_body_is_received_up_to_its_limit():
    with await receive(parts_of(b"ab", b"", b"cd"), 4) as blob:
        assert bytes_of(blob) == b"abcd"


async def test_over_the_limit_it_is_refused_early_and_closed(monkeypatch):
    made = []
    create = Blob.create
    monkeypatch.setattr(Blob, "create", lambda: made.append(create()) or made[-1])

    async def endless():
        while True:
            yield bytes(MIB // 2)

    with pytest.raises(TooLarge, match="2097152"):
        await receive(endless(), 2 * MIB)
    assert [blob.fd for blob in made] == [-1]


async def test_a_body_that_breaks_off_is_closed(monkeypatch):
    made = []
    create = Blob.create
    monkeypatch.setattr(Blob, "create", lambda: made.append(create()) or made[-1])

    async def broken():
        yield b"abc"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await receive(broken(), MIB)
    assert [blob.fd for blob in made] == [-1]


# --- decoding

data_in_pieces = st.tuples(st.binary(max_size=60), st.integers(1, 9))
spaces = st.text(" \t\r\n", max_size=3)


@given(data_in_pieces, spaces, spaces)
def test_one_key_is_decoded_without_json_at_every_split(case, a, b):
    """The limit for JSON is 0: only the way without it can succeed."""
    data, n_piece = case
    text = f'{a}{{{b}"state"{a}:{b}"{base64.b64encode(data).decode()}"{b}}}{a}'
    with pieces_of(n_piece):
        assert decode(text.encode(), 0) == data


@given(st.binary(max_size=60).map(lambda b: b + b"\xff\xff\xff\xff"), st.integers(1, 9))
def test_slashes_as_php_writes_them_at_every_split(data, n_piece):
    text = base64.b64encode(data).decode()
    assert "/" in text
    with pieces_of(n_piece):
        assert decode(('{"state":"' + text.replace("/", r"\/") + '"}').encode(), 0) == data


@given(
    st.text(r"AZaz09+/=", max_size=14) | st.text('AQ=\\/"- \u00e9\n,:}', max_size=9),
    st.integers(1, 9),
    st.sampled_from([0, MIB]),
)
def test_accepted_is_what_json_and_base64_accept(text, n_piece, max_json_bytes):
    """The reference: the whole text through a JSON parser, then the grammar of base64."""
    body = '{"state":"' + text + '"}'
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = {}
    state = parsed.get("state")
    is_good = isinstance(state, str) and BASE64.fullmatch(state) is not None
    is_plain = is_good and state == text.replace(r"\/", "/")
    with pieces_of(n_piece):
        if is_plain or (is_good and max_json_bytes):
            assert decode(body.encode(), max_json_bytes) == base64.b64decode(state)
        else:
            with pytest.raises(InvalidRequest):
                decode(body.encode(), max_json_bytes)


@pytest.mark.parametrize(
    "body",
    [
        r'{"state":"\u0041AAA"}',
        '{"id":1,"state":"AAAA"}',
        '{"state":"AAAA","id":{"state":"BBBB"}}',
        '{"state":"BBBB","state":"AAAA"}',
        '{"state":"AAAA"}' + " " * 2000,
        " " * 2000 + '{"state":"AAAA"}',
        r'{"\u0073tate":"AAAA"}',
    ],
)
def test_everything_else_is_parsed_up_to_the_limit(body):
    assert decode(body.encode(), len(body)) == bytes(3)
    with pytest.raises(InvalidRequest, match="'state'"):
        decode(body.encode(), len(body) - 1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "^the body is not valid JSON: "),
        (b"{", "^the body is not valid JSON: "),
        (b'{"state":"}', "^the body is not valid JSON: "),
        (b'{"state":"AAAA"', "^the body is not valid JSON: "),
        (b'{"state":"AAAA"}}', "^the body is not valid JSON: "),
        (b'{"state":"AAAA""}', "^the body is not valid JSON: "),
        (b'{"state":"AAAA\\"}', "^the body is not valid JSON: "),
        (b'{"state":"\xff"}', "^the body is not valid JSON: "),
        (b"[" * 100_000, "^the body is nested too deeply"),
        (b"[]", "^the body must be a JSON object$"),
        (b'"state"', "^the body must be a JSON object$"),
        (b"{}", "^Field 'state': is required$"),
        (b'{"state":null}', "^Field 'state': must be a string$"),
        (b'{"state":["AAAA"]}', "^Field 'state': must be a string$"),
        (b'{"state":"AAA"}', "^Field 'state': is not valid base64: "),
        (b'{"state":"AAAA\\n"}', "^Field 'state': is not valid base64: "),
        (b'{"state":"AA-_"}', "^Field 'state': is not valid base64: "),
        (b'{"state":"AAAA===="}', "^Field 'state': is not valid base64: "),
        (b'{"state":"AA==AAAA"}', "^Field 'state': is not valid base64: "),
        (b'{"state":"AA==\\/AAA"}', "^Field 'state': is not valid base64: "),
        (b'{"state":"AAA\\\\/"}', "^Field 'state': is not valid base64: "),
    ],
)
@pytest.mark.parametrize("n_piece", [1, 4, 1000])
def test_what_is_wrong_is_said(body, message, n_piece):
    with pieces_of(n_piece), pytest.raises(InvalidRequest, match=message):
        decode(body)


def test_a_failed_decode_leaves_no_descriptor_open():
    with blob_of(b'{"state":"' + b"A" * 4001 + b'"}') as body:
        before = descriptors()
        with pytest.raises(InvalidRequest):
            decode_state(body, MIB)
        assert descriptors() == before


MEMORY = """
import asyncio, base64, re
from pathlib import Path
from corral.storage.blob import decode_state, read_base64, receive

part = base64.b64encode(bytes(range(255)) * 1024) * 4
n_parts = 60

async def body():
    yield b'{"state":"'
    for _ in range(n_parts):
        yield part
    yield b'"}'

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

before = peak()
text = asyncio.run(receive(body(), 1 << 30))
state = decode_state(text, 0)
assert state.n_bytes == n_parts * 4 * 255 * 1024
assert sum(map(len, read_base64(state.fd, state.n_bytes))) == n_parts * len(part)
print(peak() - before)
"""


def test_a_state_is_never_whole_in_memory_that_python_manages():
    """80 MiB of text, 60 MiB of state: a third of either would show."""
    result = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 20 << 10, "KiB"
