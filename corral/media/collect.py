"""Find the images and audio of a request, and put markers in their places.

Markers are random, so that no text can imitate one.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from corral.chat.message import MEDIA_MARK
from corral.core.errors import InvalidRequest
from corral.core.media_item import MediaKind
from corral.media.inline import InlineImage, split_inline

MAX_MEDIA = 64
MAX_WARNINGS = 16
_IMAGE_ID = re.compile(r"\[img-(\d{1,18})\]")
_MAX_ID = 10**18 - 1
_IMAGE_PARTS = ("image_url", "input_image")
_VIDEO_PARTS = ("input_video", "video_url")


@dataclass(frozen=True, slots=True)
class MediaRef:
    """An image or audio clip as a client sent it: a URL, or base64. `field`: its place in the request."""

    kind: MediaKind | None  # None: decided by the bytes
    source: str
    is_url: bool
    field: str
    is_bare: bool = False  # a URI in a text, which may not be meant as an image


class Collector:
    """Collects the media of one request, in order. `kinds`: those that the server accepts. `unusable`: bare
    URIs that are not images, with the reason."""

    def __init__(self, kinds: Collection[MediaKind], unusable: Mapping[str, str] | None = None) -> None:
        self._kinds = kinds
        self._unusable = unusable or {}
        self._left_out: Counter[tuple[str, str]] = Counter()
        self.refs: list[MediaRef] = []

    @functools.cached_property
    def _nonce(self) -> str:
        return secrets.token_hex(8)

    @property
    def pattern(self) -> re.Pattern[str]:
        """What finds the markers of this request."""
        return re.compile(f"<__media_{self._nonce}_(\\d+)__>")

    def add(self, kind: MediaKind | None, source: Any, is_url: bool, field: str) -> str:
        """Add an item and return its marker."""
        require_kind(kind, self._kinds, field)
        if not isinstance(source, str):
            raise InvalidRequest("must be a string", field=field)
        return self._append(MediaRef(kind, source, is_url, field))

    def add_inline(self, image: InlineImage, field: str) -> str | None:
        """Add an image in a text and return its marker; None, and a warning, if it cannot be used."""
        if MediaKind.IMAGE not in self._kinds:
            reason = "the server does not accept images (--mmproj)"
        elif image.uri in self._unusable:
            reason = self._unusable[image.uri]
        else:
            return self._append(MediaRef(MediaKind.IMAGE, image.uri, True, field, image.is_bare))
        self._left_out[field, reason] += 1
        return None

    @property
    def warnings(self) -> list[str]:
        """Warnings about images in texts that were left out."""
        warnings = [
            f"Field '{field}': {n} data: URI{'s' * (n > 1)} in the text removed: {reason}"
            for (field, reason), n in list(self._left_out.items())[:MAX_WARNINGS]
        ]
        n_more = sum(list(self._left_out.values())[MAX_WARNINGS:])
        return [*warnings, *([f"{n_more} more data: URIs in texts were removed"] if n_more else [])]

    def _append(self, ref: MediaRef) -> str:
        if len(self.refs) == MAX_MEDIA:
            message = f"a request may have at most {MAX_MEDIA} images and audio clips"
            raise InvalidRequest(message, field=ref.field)
        self.refs.append(ref)
        return f"<__media_{self._nonce}_{len(self.refs) - 1}__>"


class PlainCollector(Collector):
    """Replaces media by `<__media__>`. Without a projector (`sees` is False), images in texts stay text."""

    def __init__(self, sees: bool = True) -> None:
        super().__init__(list(MediaKind))
        self._sees = sees

    def add_inline(self, image: InlineImage, field: str) -> str | None:
        return super().add_inline(image, field) if self._sees else None

    def _append(self, ref: MediaRef) -> str:
        super()._append(ref)
        return MEDIA_MARK


def require_kind(kind: MediaKind | None, kinds: Collection[MediaKind], field: str) -> None:
    """Raise if the server has no projector for this kind; `kind` None: any kind."""
    named = kind.value if kind is not None else "image or audio"
    what = f"Field '{field}': this server does not support {named} input"
    if not kinds:
        message = f"{what}. Start it with a projector for its model, --mmproj FILE"
        raise InvalidRequest(message, param=field)
    if kind is not None and kind not in kinds:
        raise InvalidRequest(f"{what}: its projector (--mmproj) has no support for it", param=field)


def mark_messages(messages: Any, collector: Collector) -> Any:
    """Convert media in chat messages to parts of type 'media'. Invalid messages stay as they are."""
    if not isinstance(messages, list):
        return messages
    return [_mark_message(message, f"messages[{i}].content", collector) for i, message in enumerate(messages)]


def _mark_message(message: Any, field: str, collector: Collector) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        parts = _mark_text(content, field, collector)
        return {**message, "content": parts if len(parts) > 1 or _is_media(parts[0]) else parts[0]["text"]}
    if not isinstance(content, list):
        return message
    marked = [new for i, part in enumerate(content) for new in _mark_parts(part, f"{field}[{i}]", collector)]
    return {**message, "content": marked}


def _mark_parts(part: Any, field: str, collector: Collector) -> list[Any]:
    """Convert a part of a content to one or more parts."""
    if isinstance(part, str):
        return _mark_text(part, field, collector)
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return _mark_text(part["text"], field, collector)
    return [_mark_part(part, field, collector)]


def _mark_part(part: Any, field: str, collector: Collector) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _IMAGE_PARTS:
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        return _media(collector.add(MediaKind.IMAGE, url, True, f"{field}.image_url"))
    if kind == "input_audio":
        audio = part.get("input_audio")
        data = audio.get("data") if isinstance(audio, dict) else audio
        return _media(collector.add(MediaKind.AUDIO, data, False, f"{field}.input_audio.data"))
    if kind == "media":
        raise InvalidRequest("has an unknown type", field=field)
    if kind in _VIDEO_PARTS:
        raise InvalidRequest(f"this server does not support {kind}", field=field)
    return part


def _mark_text(text: str, field: str, collector: Collector) -> list[dict[str, str]]:
    """Convert a text with inline images; adjacent texts are joined."""
    parts: list[dict[str, str]] = []
    for piece in split_inline(text) or [""]:
        part = _mark_piece(piece, field, collector)
        if parts and not _is_media(part) and not _is_media(parts[-1]):
            part = {"type": "text", "text": parts.pop()["text"] + part["text"]}
        parts.append(part)
    return parts


def _mark_piece(piece: str | InlineImage, field: str, collector: Collector) -> dict[str, str]:
    if isinstance(piece, str):
        return {"type": "text", "text": piece}
    mark = collector.add_inline(piece, field)
    return {"type": "text", "text": piece.text} if mark is None else _media(mark)


def _media(mark: str) -> dict[str, str]:
    return {"type": "media", "text": mark}


def _is_media(part: dict[str, str]) -> bool:
    return part["type"] == "media"


def mark_prompt(prompt: Any, image_data: list[Any], field: str, sees: bool, collector: Collector) -> Any:
    """Mark the media of one or several prompts: `[img-12]` refers to `image_data`, and objects carry their
    own. `sees`: without matching data, `[img-12]` is an error."""
    marks = _mark_images(image_data, collector)
    used: set[int] = set()

    def mark_text(text: Any, name: str) -> Any:
        if not isinstance(text, str) or not (marks or sees):
            return text  # tokens, and what is refused later
        return _IMAGE_ID.sub(lambda found: _mark_of(int(found[1]), marks, used, name), text)

    def mark(item: Any, name: str) -> Any:
        if isinstance(item, list):
            return [mark_text(part, name) for part in item]
        if not isinstance(item, dict):
            return mark_text(item, name)
        if "multimodal_data" in item:
            item = _mark_object(item, name, collector)
        if "prompt_string" in item:
            return {"prompt_string": mark_text(item["prompt_string"], name)}
        if isinstance(item.get("content"), list):
            return {**item, "content": [_mark_part(part, name, collector) for part in item["content"]]}
        return item

    if isinstance(prompt, list):
        marked = [
            mark(item, f"{field}[{i}]") if isinstance(item, str | list | dict) else item
            for i, item in enumerate(prompt)
        ]
    else:
        marked = mark(prompt, field)
    unused = sorted(set(marks) - used)
    if unused:
        message = f"the image with id {unused[0]} is not used: '{field}' has no [img-{unused[0]}]"
        raise InvalidRequest(message, field="image_data")
    return marked


def _mark_images(image_data: list[Any], collector: Collector) -> dict[int, str]:
    marks: dict[int, str] = {}
    for i, image in enumerate(image_data):
        name = f"image_data[{i}]"
        id = image.get("id") if isinstance(image, dict) else None
        if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id <= _MAX_ID:
            raise InvalidRequest("must be an object with 'data' and an 'id' of 0 or more", field=name)
        if id in marks:
            raise InvalidRequest(f"two images have the id {id}", field=name)
        data = image.get("data")
        is_url = isinstance(data, str) and data[:5].lower() == "data:"
        marks[id] = collector.add(MediaKind.IMAGE, data, is_url, f"{name}.data")
    return marks


def _mark_of(id: int, marks: Mapping[int, str], used: set[int], field: str) -> str:
    if id not in marks:
        raise InvalidRequest(f"[img-{id}] has no matching id in 'image_data'", field=field)
    used.add(id)
    return marks[id]


def _mark_object(prompt: dict[str, Any], field: str, collector: Collector) -> Any:
    """Mark a text that has one `<__media__>` for each item of its data."""
    data, text = prompt["multimodal_data"], prompt.get("prompt_string")
    if not isinstance(data, list) or not isinstance(text, str):
        message = "requires 'prompt_string', a text, and 'multimodal_data', a list"
        raise InvalidRequest(message, field=field)
    names = [f"{field}.multimodal_data[{i}]" for i in range(len(data))]
    marks = [collector.add(None, item, False, name) for item, name in zip(data, names, strict=True)]
    first, *others = text.split(MEDIA_MARK)
    if len(others) != len(data):
        message = f"has {MEDIA_MARK} {len(others)} times, but 'multimodal_data' has {len(data)} items"
        raise InvalidRequest(message, field=field)
    return {"prompt_string": first + "".join(m + rest for m, rest in zip(marks, others, strict=True))}
