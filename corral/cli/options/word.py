"""How the words behind an option become values; ValueError says what is wrong with them."""

from __future__ import annotations

from corral.core.modifier import Override, ScaledFile


def files(words: list[str]) -> tuple[ScaledFile, ...]:
    """`A.gguf,B.gguf`: files that count in full."""
    return tuple(ScaledFile(path) for path in words[0].split(",") if path)


def names(words: list[str]) -> tuple[str, ...]:
    """`A.png,B.png`."""
    return tuple(path for path in words[0].split(",") if path)


def scaled_files(words: list[str]) -> tuple[ScaledFile, ...]:
    """`A.gguf 0.5`, as it was once, or `A.gguf:0.5,B.gguf:2`."""
    if len(words) == 2:
        return (ScaledFile(words[0], _number(words[1])),)
    if len(words) > 2:
        raise ValueError("expects FNAME SCALE, or FNAME:SCALE,...")
    return tuple(_scaled(item) for item in words[0].split(",") if item)


def layer_range(words: list[str]) -> tuple[int, ...]:
    if not all(word.isdecimal() for word in words) or len(words) != 2:
        raise ValueError("expects two layers, the first and the last")
    return tuple(int(word) for word in words)


def overrides(words: list[str]) -> tuple[Override, ...]:
    """`KEY=TYPE:VALUE`, several with commas between them."""
    return tuple(_override(item) for item in words[0].split(",") if item)


def _scaled(item: str) -> ScaledFile:
    path, colon, scale = item.rpartition(":")
    if not colon:
        raise ValueError(f"'{item}' has no scale: expects FNAME:SCALE")
    return ScaledFile(path, _number(scale))


def _number(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise ValueError(f"'{word}' is not a number") from None
    if not abs(value) <= 1e6:
        raise ValueError(f"{word} is no sensible scale")
    return value


def _override(item: str) -> Override:
    key, equals, typed = item.partition("=")
    kind, colon, text = typed.partition(":")
    if not (key and equals and colon):
        raise ValueError(f"'{item}' is not KEY=TYPE:VALUE")
    if len(key.encode()) > 127 or len(text.encode()) > 127:
        raise ValueError(f"'{item:.40}...': keys and values have 127 bytes at most")
    if kind == "str":
        return Override(key, text)
    if kind == "bool" and text in ("true", "false"):
        return Override(key, text == "true")
    if kind in ("int", "float"):
        try:
            return Override(key, int(text) if kind == "int" else float(text))
        except ValueError:
            pass
    raise ValueError(f"'{typed}' is not one of int:N, float:X, bool:true, bool:false, str:TEXT")
