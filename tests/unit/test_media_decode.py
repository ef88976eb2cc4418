"""Pictures and sounds from bytes: every format and mode, and whatever a stranger may send."""

from __future__ import annotations

import base64
import io
import re
import struct
import tracemalloc
import urllib.parse
import warnings
import zlib
from functools import cache

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, PngImagePlugin

from corral.core.errors import InvalidRequest
from corral.core.media_item import MediaKind
from corral.media import audio, image
from corral.media.audio import decode_audio
from corral.media.data_uri import decode_base64, parse_data_uri
from corral.media.decoded import BadMedia
from corral.media.image import decode_image
from tests.tools.examples import examples

IMAGE, AUDIO = MediaKind.IMAGE, MediaKind.AUDIO
FORMATS = ["JPEG", "PNG", "GIF", "WEBP", "BMP"]


def write(image, format="PNG", **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def quadrants(size=(32, 16)):
    """Red, green; blue, white."""
    image = Image.new("RGB", size, "white")
    half = size[0] // 2, size[1] // 2
    image.paste("red", (0, 0, *half))
    image.paste("lime", (half[0], 0, size[0], half[1]))
    image.paste("blue", (0, half[1], half[0], size[1]))
    return image


def colours(sample):
    """Of a pixel in the middle of each quadrant, row by row."""
    pixels = np.frombuffer(sample.data, np.uint8).reshape(sample.height, sample.width, 3)
    rows, columns = (sample.height // 4, -sample.height // 4), (sample.width // 4, -sample.width // 4)
    return [tuple(int(v) for v in pixels[y, x]) for y in rows for x in columns]


def near(got, expected, by=12):
    return all(
        abs(a - b) <= by for g, e in zip(got, expected, strict=True) for a, b in zip(g, e, strict=True)
    )


RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
ALL = [RED, GREEN, BLUE, WHITE]


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(*chunks, size=(8, 8), depth=8, colour=2, rows=None):
    header = struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, 0)
    if rows is None:
        rows = (b"\0" + b"\x7f" * 3 * size[0]) * size[1]
    body = [chunk(b"IHDR", header), *chunks, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def read(decode, *arguments):
    """What is decoded, or nothing if it is refused, with words that tell nothing of memory or paths."""
    message = ""
    try:
        return decode(*arguments)
    except BadMedia as error:
        message = error.message
    assert message.isprintable()
    assert not re.search(r"0x|<|object", message)
    return None


class TestDataUri:
    @pytest.mark.parametrize(
        "uri",
        [
            "data:image/png;base64,aGk+Pz8=",
            "DATA:IMAGE/PNG;BASE64,aGk+Pz8=",
            "data:image/;base64,aGk+Pz8=",
            "data:image/png;charset=utf-8;base64,aGk+Pz8=",
            'data:image/png;name="a,\\";b";base64,aGk+Pz8=',
            "data:image/png;base64,aGk%2BPz8%3D",
            "data:image/png;base64,aGk+Pz8",
            "data:image/png;base64, aGk+\r\n\tPz8=\n",
            "data:image/png,hi>??",
            "data:image/png;base64;x=y,%68i%3E??",
        ],
    )
    def test_ways_to_write_one(self, uri):
        assert parse_data_uri(uri, IMAGE) == b"hi>??"

    @pytest.mark.parametrize(
        ("uri", "message"),
        [
            ("https://example.com/a.png", "is not a data: URI"),
            ("", "is not a data: URI"),
            ("data:image/png;base64", "a comma"),
            ("data:image/png" + ";a" * 4096 + ",x", "a comma"),
            ('data:image/png;a="' + '\\"' * 100_000 + ",x", "a comma"),
            ("data:,hi", "declared as 'text/plain'"),
            ("data:;base64,aGk=", "declared as 'text/plain'"),
            ("data:audio/wav;base64,aGk=", "declared as 'audio/wav', not as 'image/...'"),
            ("data:image;base64,aGk=", "declared as 'image'"),
            ("data:image/png;base64,", "is empty"),
            ("data:image/png,", "is empty"),
            ("data:image/png,%41" + "%41" * (1 << 20), "percent-encoded"),
        ],
    )
    def test_what_is_wrong_is_said(self, uri, message):
        with pytest.raises(BadMedia, match=re.escape(message)):
            parse_data_uri(uri, IMAGE)

    @pytest.mark.parametrize(
        "text",
        [
            "aGk_",
            "aGk-",
            "a",
            "aGkhI",
            "aGk=x",
            "aGk==",
            "aGkh=",
            "====",
            "aG=k",
            "aGk!",
            "aGkä",
            "aGk\u00a0",
            "aG%3D",
        ],
    )
    def test_broken_base64(self, text):
        with pytest.raises(BadMedia, match="base64"):
            decode_base64(text)

    def test_a_declared_type_is_short_and_printable(self):
        with pytest.raises(BadMedia) as error:
            parse_data_uri("data:text/\x1b[31m\n\u202e" + "x" * 3000 + ",hi", IMAGE)
        assert error.value.message.isprintable()
        assert error.value.message.isascii()
        assert len(error.value.message) < 100
        assert isinstance(error.value, InvalidRequest)

    def test_audio(self):
        assert parse_data_uri("data:audio/wav;base64,aGk=", AUDIO) == b"hi"

    @given(st.binary(min_size=1), st.booleans())
    def test_any_bytes_come_back(self, data, escape):
        text = base64.b64encode(data).decode()
        quoted = urllib.parse.quote(text, safe="") if escape else text.rstrip("=")
        assert decode_base64(text) == decode_base64(text.rstrip("=")) == data
        assert parse_data_uri("data:image/x;base64," + quoted, IMAGE) == data
        assert parse_data_uri("data:image/x," + urllib.parse.quote(data), IMAGE) == data

    @given(st.text() | st.text(alphabet='data:image/;bse64,"\\%= ', max_size=40))
    def test_any_text_is_read_or_refused(self, text):
        for uri in (text, "data:" + text, "data:image/png;base64," + text, "data:image/png," + text):
            read(parse_data_uri, uri, IMAGE)


class TestPicture:
    @pytest.mark.parametrize("format", FORMATS)
    def test_formats(self, format):
        sample = decode_image(write(quadrants(), format))
        assert (sample.kind, sample.width, sample.height) == (IMAGE, 32, 16)
        assert len(sample.data) == 32 * 16 * 3
        assert near(colours(sample), ALL)

    @pytest.mark.parametrize(
        ("format", "mode"),
        [
            *[("PNG", mode) for mode in ("RGBA", "P")],
            *[("BMP", mode) for mode in ("P", "RGBA")],
            *[("WEBP", "RGBA"), ("GIF", "P"), ("JPEG", "CMYK"), ("JPEG", "YCbCr")],
        ],
    )
    def test_modes_with_colours(self, format, mode):
        image = quadrants().convert(mode)
        assert near(colours(decode_image(write(image, format))), ALL)

    @pytest.mark.parametrize(
        ("format", "mode", "grey"),
        [("PNG", "1", 255), ("BMP", "1", 255), *[(f, "L", 100) for f in FORMATS], ("PNG", "LA", 100)],
    )
    def test_modes_without(self, format, mode, grey):
        sample = decode_image(write(Image.new("L", (20, 10), grey).convert(mode), format))
        assert near(colours(sample), [(grey,) * 3] * 4, by=2)

    @pytest.mark.parametrize(("colour", "n_values"), [(0, 1), (2, 3), (4, 2), (6, 4)])
    def test_16_bits_are_scaled(self, colour, n_values):
        rows = (b"\0" + b"\x12\x34" * n_values * 8) * 8
        assert set(decode_image(png(depth=16, colour=colour, rows=rows)).data) == {0x12}

    def test_alpha_is_dropped(self):
        image = Image.new("RGBA", (8, 8), (10, 20, 30, 0))
        assert decode_image(write(image)).data == bytes((10, 20, 30)) * 64
        assert decode_image(write(image, "WEBP", lossless=True, exact=True)).data == bytes((10, 20, 30)) * 64

    @pytest.mark.parametrize("transparency", [0, bytes((0, 128))])
    def test_a_transparent_palette(self, transparency):
        image = Image.new("P", (8, 8), 0)
        image.putpalette([10, 20, 30, 40, 50, 60])
        image.paste(1, (4, 0, 8, 8))
        sample = decode_image(write(image, transparency=transparency))
        assert sample.data == (bytes((10, 20, 30)) * 4 + bytes((40, 50, 60)) * 4) * 8

    @pytest.mark.parametrize(
        ("mode", "colour", "transparency"), [("L", 7, 7), ("RGB", (10, 20, 30), (10, 20, 30)), ("1", 1, 1)]
    )
    def test_a_transparent_colour(self, mode, colour, transparency):
        image = Image.new(mode, (8, 8), colour)
        opaque = image.convert("RGB").tobytes()
        assert decode_image(write(image, transparency=transparency)).data == opaque

    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
    def test_orientation(self, format, orientation):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = write(quadrants(), format, exif=exif)
        expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        sample = decode_image(data)
        assert (sample.width, sample.height) == ((16, 32) if orientation >= 5 else (32, 16))
        assert sample.data == expected.tobytes()

    @pytest.mark.parametrize("value", [0, 9, 65535])
    def test_an_orientation_that_does_not_exist(self, value):
        exif = Image.Exif()
        exif[0x0112] = value
        assert near(colours(decode_image(write(quadrants(), exif=exif))), ALL)

    @given(st.binary(max_size=80))
    @settings(deadline=None)
    def test_broken_metadata_is_ignored(self, junk):
        for data in (
            b"Exif\0\0" + junk,
            b"Exif\0\0II*\0\x08\0\0\0" + junk,
            b"II*\0\x08\0\0\0\xff\xff" + junk,
        ):
            segment = b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data
            jpeg = write(quadrants(), "JPEG")
            assert decode_image(jpeg[:2] + segment + jpeg[2:]).data
            assert decode_image(png(chunk(b"eXIf", data))).data

    def test_no_warning_comes_out(self):
        mp = b"MPF\0II*\0\x08\0\0\0\xff\xff"
        segment = b"\xff\xe2" + struct.pack(">H", len(mp) + 2) + mp
        jpeg = write(quadrants(), "JPEG")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert decode_image(jpeg[:2] + segment + jpeg[2:]).data
            filters = list(warnings.filters)
            assert decode_image(jpeg).data
            assert filters == warnings.filters
        assert seen == []

    @pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP"])
    def test_the_first_frame_of_many(self, format):
        frames = [Image.new("RGB", (32, 16), colour) for colour in ("red", "blue", "lime")]
        data = write(frames[0], format, save_all=True, append_images=frames[1:])
        assert near(colours(decode_image(data)), [RED] * 4)

    @pytest.mark.parametrize("format", FORMATS)
    def test_one_pixel(self, format):
        sample = decode_image(write(Image.new("RGB", (1, 1), "red"), format))
        assert (sample.width, sample.height) == (1, 1)

    def test_the_one_of_the_manual(self):
        data = decode_base64("R0lGODlhAQABAIAAAP///wAAACH5BAEAAAAALAAAAAABAAEAAAICRAEAOw==")
        assert decode_image(data).width == 1

    @pytest.mark.parametrize(
        "data", [b"", b"x", b"GIF89a", b"<svg/>", b"%PDF-1.7", b"RIFF\0\0\0\0WEBP", b"\0" * 100]
    )
    def test_no_picture(self, data):
        with pytest.raises(BadMedia):
            decode_image(data)

    @pytest.mark.parametrize(
        "format", ["TIFF", "ICO", "PPM", "TGA", "JPEG2000", "DDS", "PCX", "ICNS", "EPS", "DIB"]
    )
    def test_other_formats_stay_closed(self, format):
        with pytest.raises(BadMedia, match="JPEG, PNG, GIF, WebP"):
            decode_image(write(quadrants((64, 64)), format))


@cache
def compressed(n_bytes: int) -> bytes:
    return zlib.compress(bytes(n_bytes))


class TestHostilePicture:
    @pytest.mark.parametrize(
        "size", [(100_000, 100_000), (40_000, 1), (1, 40_000), (5761, 5761), (13_000, 13_000)]
    )
    def test_too_large_by_its_header(self, size):
        tracemalloc.start()
        with pytest.raises(BadMedia, match="too large"):
            decode_image(png(size=size, rows=b""))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()

    def test_a_webp_canvas(self):
        body = b"WEBPVP8X" + struct.pack("<II", 10, 0) + (2**24 - 1).to_bytes(3, "little") * 2
        with pytest.raises(BadMedia):  # what Pillow says of it depends on its version
            decode_image(b"RIFF" + struct.pack("<I", len(body)) + body)

    def test_a_gif_frame_beyond_its_screen(self):
        frame = struct.pack("<HHHHB", 60_000, 60_000, 5000, 5000, 0)
        with pytest.raises(BadMedia, match="too large"):
            decode_image(b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + b"," + frame + b"\x08\x00;")

    def test_the_largest_allowed(self, monkeypatch):
        monkeypatch.setattr(image, "MAX_PIXELS", 64)
        assert decode_image(png(size=(8, 8))).width == 8
        with pytest.raises(BadMedia, match="too large"):
            decode_image(png(size=(8, 9)))

    @pytest.mark.parametrize("size", [(0, 8), (8, 0), (0, 0)])
    def test_no_pixels(self, size):
        with pytest.raises(BadMedia):
            decode_image(png(size=size, rows=b""))

    @pytest.mark.parametrize(
        "bomb",
        [
            lambda: chunk(b"zTXt", b"a\0\0" + compressed(64 << 20)),
            lambda: chunk(b"iTXt", b"a\0\1\0\0\0" + compressed(64 << 20)),
            lambda: chunk(b"iCCP", b"a\0\0" + compressed(64 << 20)),
            lambda: b"".join(chunk(b"zTXt", b"%d\0\0" % i + compressed(1 << 20)) for i in range(80)),
        ],
        ids=["zTXt", "iTXt", "iCCP", "many"],
    )
    def test_compressed_metadata(self, bomb):
        file = png(bomb())
        tracemalloc.start()
        with pytest.raises(BadMedia):
            decode_image(file)
        assert tracemalloc.get_traced_memory()[1] < 4 * PngImagePlugin.MAX_TEXT_MEMORY
        tracemalloc.stop()

    def test_metadata_in_many_parts(self):
        jpeg = write(quadrants(), "JPEG")
        part = b"\xff\xe1\x00\x12Exif\0\0" + b"x" * 10
        assert decode_image(jpeg[:2] + part * 10 + jpeg[2:]).data
        with pytest.raises(BadMedia, match="metadata"):
            decode_image(jpeg[:2] + part * 100_000 + jpeg[2:])

    def test_scans_without_end(self):
        jpeg = write(Image.new("RGB", (2000, 2000)), "JPEG", progressive=True)
        assert decode_image(jpeg).width == 2000
        scan = jpeg[jpeg.rindex(b"\xff\xda") : -2]
        with pytest.raises(BadMedia, match="scans"):
            decode_image(jpeg[:-2] + scan * 2000 + jpeg[-2:])

    @pytest.mark.parametrize("format", FORMATS)
    def test_cut_short(self, format):
        noise = Image.effect_noise((48, 48), 80).convert("RGB")
        data = write(noise, format)
        n_refused = sum(not decodes(data[:end]) for end in range(0, len(data), 97))
        assert n_refused >= len(range(0, len(data), 97)) - 1
        assert not decodes(data[: len(data) // 2])

    @pytest.mark.parametrize("format", FORMATS)
    @given(data=st.data())
    @examples(40)
    def test_flipped_bytes(self, format, data):
        picture_bytes = bytearray(write(quadrants(), format))
        for _ in range(data.draw(st.integers(1, 4))):
            picture_bytes[data.draw(st.integers(0, len(picture_bytes) - 1))] = data.draw(st.integers(0, 255))
        decodes(bytes(picture_bytes))

    @given(
        st.sampled_from(
            [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF\0\0\0\0WEBPVP8 ", b"BM"]
        ),
        st.binary(),
    )
    @settings(deadline=None)
    def test_random_bytes(self, magic, data):
        decodes(magic + data)


def decodes(data):
    sample = read(decode_image, data)
    assert sample is None or len(sample.data) == 3 * sample.width * sample.height > 0
    return sample is not None


def tone(n_frames, rate, n_channels=1):
    wave = 0.5 * np.sin(2 * np.pi * 440 * np.arange(n_frames) / rate)
    return np.repeat(wave[:, None], n_channels, 1)


def write_sound(samples, rate, format="WAV", subtype=None):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format, subtype=subtype)
    return file.getvalue()


def floats(sample):
    assert (sample.kind, sample.height) == (AUDIO, 1)
    assert len(sample.data) == 4 * sample.width
    return np.frombuffer(sample.data, "<f4")


def like(got, expected, by):
    """The middle of both; the edges of compressed and resampled sound are soft."""
    assert abs(len(got) - len(expected)) <= 1
    n = len(expected)
    return np.abs(got[n // 4 : 3 * n // 4] - expected[n // 4 : 3 * n // 4]).max() < by


class TestSound:
    @pytest.mark.parametrize(
        ("format", "subtype"),
        [
            *[
                ("WAV", s)
                for s in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")
            ],
            *[("WAVEX", "PCM_16"), ("FLAC", "PCM_S8"), ("FLAC", "PCM_16"), ("FLAC", "PCM_24")],
            *[("MP3", None), ("OGG", "VORBIS"), ("OGG", "OPUS")],
        ],
    )
    @pytest.mark.parametrize("n_channels", [1, 2])
    def test_formats(self, format, subtype, n_channels):
        data = write_sound(tone(8000, 8000, n_channels), 8000, format, subtype)
        assert like(floats(decode_audio(data, 8000)), tone(8000, 8000)[:, 0], by=0.1)
        assert like(floats(decode_audio(data, 16000)), tone(16000, 16000)[:, 0], by=0.1)

    @pytest.mark.parametrize(("rate", "n_frames"), [(48_000, 200_000), (44_100, 99_999), (11_025, 11_025)])
    def test_blocks_join(self, rate, n_frames):
        data = write_sound(tone(n_frames, rate), rate, "FLAC", "PCM_24")
        n_expected = round(n_frames * 16_000 / rate)
        assert like(floats(decode_audio(data, 16_000)), tone(n_expected, 16_000)[:, 0], by=0.001)

    def test_channels_are_averaged(self):
        samples = np.zeros((1000, 4))
        samples[:, 1] = 0.5
        assert np.allclose(floats(decode_audio(write_sound(samples, 16_000), 16_000)), 0.125)

    @pytest.mark.parametrize("format", ["WAV", "FLAC", "MP3"])
    def test_tags_are_skipped(self, format):
        data = write_sound(tone(8000, 8000), 8000, format)
        tag = b"ID3\x04\0\0\0\0\1\x00" + b"x" * 128
        assert decode_audio(tag + tag + b"\0" * 7 + data, 8000) == decode_audio(data, 8000)

    @pytest.mark.parametrize("rate", [1, 7, 384_000])
    def test_odd_rates(self, rate):
        assert decode_audio(write_sound(tone(600, rate), rate), 16_000).width == round(600 * 16_000 / rate)

    @pytest.mark.parametrize("format", ["AIFF", "AU", "CAF", "W64", "RF64", "VOC", "NIST"])
    def test_other_formats_stay_closed(self, format):
        with pytest.raises(BadMedia, match="WAV, FLAC, MP3"):
            decode_audio(write_sound(tone(100, 8000), 8000, format), 16_000)

    @pytest.mark.parametrize("subtype", ["IMA_ADPCM", "MS_ADPCM", "GSM610"])
    def test_other_encodings_are_refused(self, subtype):
        with pytest.raises(BadMedia, match="encoding"):
            decode_audio(write_sound(tone(8000, 8000), 8000, "WAV", subtype), 16_000)


class TestHostileSound:
    @pytest.mark.parametrize(
        "data", [b"", b"\xff", b"RIFF", b"ID3", b"ID3\x04\0\0\x7f\x7f\x7f\x7f", b"\0" * 50, b"fLaC"]
    )
    def test_no_sound(self, data):
        with pytest.raises(BadMedia):
            decode_audio(data, 16_000)

    @pytest.mark.parametrize("format", ["WAV", "FLAC", "OGG"])
    def test_empty(self, format):
        with pytest.raises(BadMedia):
            decode_audio(write_sound(np.zeros(0), 8000, format), 16_000)

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("rate", [8000, 16_000])
    def test_not_numbers(self, value, rate):
        samples = tone(1000, rate)
        samples[500] = value
        with pytest.raises(BadMedia, match="not finite"):
            decode_audio(write_sound(samples, rate, subtype="FLOAT"), 16_000)

    def test_loud_beyond_numbers(self):
        samples = np.where(np.arange(1000)[:, None] // 50 % 2, 3.4e38, -3.4e38).repeat(2, 1)
        with pytest.raises(BadMedia, match="not finite"):
            decode_audio(write_sound(samples, 8000, subtype="FLOAT"), 16_000)

    def test_too_many_channels(self):
        assert decode_audio(write_sound(tone(100, 8000, 8), 8000), 16_000).width == 200
        with pytest.raises(BadMedia, match="9 channels"):
            decode_audio(write_sound(tone(100, 8000, 9), 8000), 16_000)

    def test_too_fast(self):
        with pytest.raises(BadMedia, match="sample rate of 400000 Hz"):
            decode_audio(write_sound(tone(100, 8000), 400_000), 16_000)

    def test_too_long(self, monkeypatch):
        monkeypatch.setattr(audio, "MAX_SECONDS", 1)
        assert decode_audio(write_sound(tone(8000, 8000), 8000, "FLAC"), 16_000).width == 16_000
        with pytest.raises(BadMedia, match=r"\b1 second"):
            decode_audio(write_sound(tone(8001, 8000), 8000, "FLAC"), 16_000)

    def test_too_much(self, monkeypatch):
        monkeypatch.setattr(audio, "MAX_VALUES", 1000)
        with pytest.raises(BadMedia, match="1000 samples"):
            decode_audio(write_sound(tone(501, 8000, 2), 8000), 16_000)

    def test_a_length_that_is_not_known(self, monkeypatch):
        data = with_flac_frames(write_sound(tone(100_000, 8000), 8000, "FLAC"), 0)
        assert decode_audio(data, 8000).width == 100_000
        monkeypatch.setattr(audio, "MAX_SECONDS", 12)
        with pytest.raises(BadMedia, match="12 seconds"):
            decode_audio(data, 8000)

    @pytest.mark.parametrize("claimed", [14_000_000, 1 << 35])
    def test_a_length_that_is_a_lie(self, claimed):
        data = with_flac_frames(write_sound(tone(8000, 8000), 8000, "FLAC"), claimed)
        tracemalloc.start()
        sample = read(decode_audio, data, 8000)
        assert sample is None or sample.width == 8000
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()

    def test_a_wav_that_never_ends(self):
        data = bytearray(write_sound(tone(8000, 8000), 8000))
        at = data.index(b"data") + 4
        data[4:8] = data[at : at + 4] = b"\xff" * 4
        assert decode_audio(bytes(data), 8000).width == 8000

    @pytest.mark.parametrize("format", ["WAV", "FLAC", "MP3", "OGG"])
    def test_cut_short(self, format):
        data = write_sound(tone(4000, 8000), 8000, format)
        for end in range(0, len(data), 97):
            sounds(data[:end])

    @pytest.mark.parametrize("format", ["WAV", "FLAC", "MP3", "OGG"])
    @given(data=st.data())
    @examples(40)
    def test_flipped_bytes(self, format, data):
        sound_bytes = bytearray(SOUNDS[format])
        for _ in range(data.draw(st.integers(1, 4))):
            sound_bytes[data.draw(st.integers(0, min(len(sound_bytes), 200) - 1))] = data.draw(
                st.integers(0, 255)
            )
        sounds(bytes(sound_bytes))

    @given(
        st.sampled_from([b"", b"RIFF\0\0\0\0WAVEfmt ", b"fLaC\0\0\0\x22", b"OggS\0\2", b"\xff\xfb"]),
        st.binary(),
    )
    @settings(deadline=None)
    def test_random_bytes(self, magic, data):
        sounds(magic + data)


SOUNDS = {format: write_sound(tone(2000, 8000), 8000, format) for format in ("WAV", "FLAC", "MP3", "OGG")}


def with_flac_frames(data, n_frames):
    """The same with another count in its header."""
    fields = int.from_bytes(data[18:26], "big")
    return data[:18] + (fields >> 36 << 36 | n_frames).to_bytes(8, "big") + data[26:]


def sounds(data):
    sample = read(decode_audio, data, 16_000)
    assert sample is None or np.isfinite(floats(sample)).all()
