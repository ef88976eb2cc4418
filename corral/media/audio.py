"""Decode audio with libsndfile: WAV, FLAC, MP3 and Ogg, whatever the declared type.

Files are read in blocks: memory depends on the data, not on what a header claims. Decode in a thread.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import soundfile
import soxr

from corral.core.media_item import MediaKind
from corral.media.decoded import BadMedia, DecodedMedia, reading

MAX_SECONDS = 1800
MAX_CHANNELS = 8
MAX_RATE = 384_000
MAX_VALUES = 200_000_000  # of all channels; more than half an hour of stereo at 48 kHz

_BLOCK_FRAMES = 1 << 16
_UNKNOWN = (1 << 63) - 1  # frame count of a FLAC file written as a stream
_SUBTYPES = {
    *("PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"),
    *("VORBIS", "OPUS", "MPEG_LAYER_III"),
}

_Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def decode_audio(data: bytes, rate: int) -> DecodedMedia:
    """Decode to mono with `rate` samples per second."""
    data = _skip_tags(data)
    if not data:
        raise BadMedia("is empty")
    if not is_audio(data):
        raise BadMedia("cannot be read: it is not WAV, FLAC, MP3 or Ogg audio")
    with reading(), _File(io.BytesIO(data)) as file:
        _check_header(file)
        samples = b"".join(_resample(_read_mono(file), file.samplerate, rate))
    if not samples:
        raise BadMedia("is empty")
    return DecodedMedia(MediaKind.AUDIO, len(samples) // 4, 1, samples)


class _File(soundfile.SoundFile):  # type: ignore[misc]
    """Reads sequentially: soundfile would seek after each block, and fail at the end of some streams."""

    def seekable(self) -> bool:
        return False


def _skip_tags(data: bytes) -> bytes:
    """Skip ID3 tags, which libsndfile supports only before MP3."""
    start = 0
    while data[start : start + 3] == b"ID3" and len(data) >= start + 10:
        size = 0
        for byte in data[start + 6 : start + 10]:
            size = size << 7 | byte & 0x7F
        has_footer = data[start + 5] & 0x10
        start += 10 + size + (10 if has_footer else 0)
    return data[start:].lstrip(b"\0") if start else data


def is_audio(data: bytes) -> bool:
    """Check the first bytes, also to keep data away from libsndfile's parsers of twenty other formats."""
    is_wav = data[:4] == b"RIFF" and data[8:12] == b"WAVE"
    is_mp3 = (data[:1] == b"\xff" and data[1:2] >= b"\xe0") or data[:3] == b"ID3"
    return is_wav or is_mp3 or data[:4] in (b"fLaC", b"OggS")


def _check_header(file: _File) -> None:
    if file.subtype not in _SUBTYPES:
        raise BadMedia("cannot be read: its encoding is not supported")
    if not 1 <= file.channels <= MAX_CHANNELS:
        raise BadMedia(f"has {file.channels} channels; the limit is {MAX_CHANNELS}")
    if not 1 <= file.samplerate <= MAX_RATE:
        raise BadMedia(f"has a sample rate of {file.samplerate} Hz; it must be 1 to {MAX_RATE} Hz")
    if file.frames != _UNKNOWN:
        _check_length(file, file.frames)


def _check_length(file: _File, n_frames: int) -> None:
    if n_frames > MAX_SECONDS * file.samplerate:
        raise BadMedia(f"is longer than {MAX_SECONDS} seconds")
    if n_frames * file.channels > MAX_VALUES:
        raise BadMedia(f"has more than {MAX_VALUES} samples in all channels")


def _read_mono(file: _File) -> Iterator[_Array]:
    """Yield non-empty blocks of the mixed channels."""
    n_frames = 0
    while len(block := file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
        n_frames += len(block)
        _check_length(file, n_frames)
        yield _require_finite(block).mean(axis=1, dtype=np.float64).astype(np.float32)


def _resample(blocks: Iterator[_Array], old_rate: int, rate: int) -> Iterator[bytes]:
    if old_rate == rate:
        yield from map(_to_bytes, blocks)
        return
    stream = soxr.ResampleStream(old_rate, rate, 1, dtype="float32")
    for block in blocks:
        yield _to_bytes(stream.resample_chunk(block))
    yield _to_bytes(stream.resample_chunk(np.empty(0, np.float32), last=True))


def _to_bytes(samples: _Array) -> bytes:
    return _require_finite(samples).astype("<f4").tobytes()


def _require_finite(samples: _Array) -> _Array:
    if not np.isfinite(samples).all():
        raise BadMedia("has samples that are not finite")
    return samples
