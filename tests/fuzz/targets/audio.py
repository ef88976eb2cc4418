"""Audio of every format that is decoded: WAV, FLAC, Ogg, MP3, and ID3 tags before them."""

from __future__ import annotations

import io

import numpy as np
import soundfile

from corral.media.audio import decode_audio
from corral.media.decoded import BadMedia
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Limit, Target

_RATE = 16_000


def _audio(format: str, subtype: str, n_channels: int = 1, rate: int = 8000) -> bytes:
    wave = np.sin(np.arange(800) / 5).astype(np.float32)
    file = io.BytesIO()
    soundfile.write(file, np.stack([wave] * n_channels, 1), rate, format=format, subtype=subtype)
    return file.getvalue()


def parse(data: bytes) -> None:
    sample = decode_audio(data, _RATE)
    assert len(sample.data) == 4 * sample.width


_WAV = _audio("WAV", "PCM_16")
SEEDS = [
    _WAV,
    b"ID3\x04\x00\x00\x00\x00\x00\x05title" + _WAV,
    _audio("WAV", "FLOAT", 2),
    _audio("WAV", "ULAW", rate=11_025),
    _audio("FLAC", "PCM_16"),
    _audio("OGG", "VORBIS"),
    _audio("MP3", "MPEG_LAYER_III"),
]
WORDS = [b"RIFF", b"WAVE", b"fmt ", b"data", b"LIST", b"fLaC", b"OggS", b"ID3", b"\xff\xfb\x90\x00"]
# Half an hour of audio fits into few bytes, if they are compressed.
LIMIT = Limit(cpu_s=10.0, mib=400.0)
TARGET = Target("audio", parse, SEEDS, mutated(SEEDS, WORDS), (BadMedia,), LIMIT)
