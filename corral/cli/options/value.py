"""Convert the arguments of an option to values. Raises ValueError with the reason."""

from __future__ import annotations

import difflib
import re

import orjson

from corral.core.errors import CorralError
from corral.core.modifier import Override, ScaledFile
from corral.core.params import RANDOM_SEED
from corral.core.sampler_name import samplers_by_letter, samplers_by_name
from corral.core.transcoding import AUTO, OFF, TUNED
from corral.gguf.file_type import TRANSCODABLE

_MAX_NEAR = 5
_OF_TEXTS = ("{{", "{%", " ")  # a template, or text without Jinja; no name has them
_PREFIX = re.compile(r"(/[\w.~-]+)+", re.ASCII)
_ORIGIN = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?")
_OFF = ("0", "false", "no", "disabled")
_BIAS = re.compile(r"(\d{1,9})([+-])(\d{1,9}(?:\.\d{1,9})?|inf)")


def files(args: list[str]) -> tuple[ScaledFile, ...]:
    """Parse `A.gguf,B.gguf` into files with scale 1."""
    return tuple(ScaledFile(path) for path in args[0].split(",") if path)


def path_prefix(args: list[str]) -> str:
    """Check the beginning of all paths."""
    if args[0] and not _PREFIX.fullmatch(args[0]):
        raise ValueError(f"'{args[0]}' must be like /api/v2: a slash before every name, none at the end")
    return args[0]


def names(args: list[str]) -> tuple[str, ...]:
    """Parse `A,B`."""
    return tuple(name.strip() for name in args[0].split(",") if name.strip())


def origins(args: list[str]) -> tuple[str, ...]:
    """Parse `A,B` of origins, which become part of a header."""
    found = names(args)
    for origin in found:
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(f"'{origin}' is not an origin such as https://mcp.example.com")
    return found


def keys(args: list[str]) -> tuple[str, ...]:
    """Parse `A,B`. Empty keys are refused, since they would protect nothing."""
    found = names(args)
    if not found:
        raise ValueError("the key is empty; give a key, or omit the option")
    return found


def text(args: list[str]) -> tuple[str, ...]:
    return (args[0],)


def seed(args: list[str]) -> int:
    """Parse a seed; any negative number means random."""
    try:
        value = int(args[0])
    except ValueError:
        raise ValueError(f"'{args[0]}' is not an integer") from None
    if value > RANDOM_SEED:
        raise ValueError(f"{value} is out of range, the maximum is {RANDOM_SEED}")
    return value if value >= 0 else RANDOM_SEED


def layers(args: list[str]) -> int:
    """Parse a number of layers. For libllama any negative number means all; -2 marks that the user asked for
    all."""
    name = args[0].lower()
    if name in ("all", "auto"):
        return -2 if name == "all" else -1
    if not re.fullmatch(r"-[12]|\d{1,6}", name):
        raise ValueError(f"'{args[0]}' is not a number of layers, all or auto")
    return int(name)


def template(args: list[str]) -> str:
    """Parse the name of a built-in chat template, or a template itself."""
    from corral.chat.named import NAMES  # needed only here

    name = args[0]
    if any(mark in name for mark in _OF_TEXTS):
        check_template(name)
        return name
    if not name or name in NAMES:
        return name
    if name.endswith(".jinja") or "/" in name:
        raise ValueError(f"'{name}' looks like a file name; pass files with --chat-template-file")
    near = difflib.get_close_matches(name.lower(), NAMES, _MAX_NEAR, 0.5)
    known = f"did you mean {' or '.join(near)}?" if near else f"built-in templates: {', '.join(NAMES)}"
    raise ValueError(
        f"'{name}' is not a built-in template and not Jinja (it has neither {{{{ nor {{%); {known}"
    )


def check_template(text: str) -> None:
    from corral.chat.jinja_template import ChatTemplate  # slow import

    try:
        ChatTemplate(text)
    except CorralError as error:
        raise ValueError(error.message) from None


def grammar(args: list[str]) -> str:
    """Check GBNF syntax. Only the model knows whether the tokens it names exist."""
    from corral.grammar.gbnf import gbnf_to_lark  # slow import

    try:
        if args[0]:
            gbnf_to_lark(args[0], lambda _: 0)
    except CorralError as error:
        raise ValueError(error.message) from None
    return args[0]


def json_text(args: list[str]) -> str:
    try:
        orjson.loads(args[0] or "null")
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    return args[0]


def json_object(args: list[str]) -> str:
    if json_text(args) and not isinstance(orjson.loads(args[0]), dict):
        raise ValueError("must be a JSON object")
    return args[0]


def mcp_servers(args: list[str]) -> str:
    from corral.mcp.config import parse_config

    try:
        parse_config(args[0])
    except CorralError as error:
        raise ValueError(error.message) from None
    return args[0]


def encoding(args: list[str]) -> str:
    """Parse an encoding of weights in any case: `auto`, `off` or a type."""
    name = args[0].lower()
    if name in (AUTO, TUNED):
        return AUTO
    if name in (OFF, *_OFF):
        return OFF
    if name.upper() not in TRANSCODABLE:
        raise ValueError(f"'{args[0]}' is not auto, off or one of {', '.join(TRANSCODABLE)}")
    return name.upper()


def samplers(args: list[str]) -> tuple[str, ...]:
    """Parse `top_k;temperature`."""
    return samplers_by_name(name.strip() for name in args[0].split(";") if name.strip())


def sampler_letters(args: list[str]) -> tuple[str, ...]:
    """Parse `kt`."""
    return samplers_by_letter(args[0])


def breakers(args: list[str]) -> tuple[str, ...]:
    return () if args[0] == "none" else (args[0],)


def logit_bias(args: list[str]) -> tuple[tuple[int, float], ...]:
    """Parse `15043+1`."""
    match = _BIAS.fullmatch(args[0])
    if match is None:
        raise ValueError(f"'{args[0]}' is not of the form 15043+1 or 15043-inf (token id and bias)")
    token, sign, amount = match.groups()
    return ((int(token), float(sign + amount)),)


def shares(args: list[str]) -> tuple[float, ...]:
    """Parse `3,1` or `3/1`."""
    values = tuple(_number(part) for part in re.split("[,/]", args[0]))
    if min(values) < 0:
        raise ValueError(f"'{args[0]}' has a negative share")
    return values


def scaled_files(args: list[str]) -> tuple[ScaledFile, ...]:
    """Parse `A.gguf:0.5,B.gguf:2`, or `A.gguf 0.5`, the older form."""
    if len(args) == 2:
        return (ScaledFile(args[0], _number(args[1])),)
    if len(args) > 2:
        raise ValueError("expects FNAME SCALE, or FNAME:SCALE,...")
    return tuple(_scaled(item) for item in args[0].split(",") if item)


def layer_range(args: list[str]) -> tuple[int, ...]:
    if not all(word.isdecimal() for word in args) or len(args) != 2:
        raise ValueError("expects two layer numbers, first and last")
    return tuple(int(word) for word in args)


def overrides(args: list[str]) -> tuple[Override, ...]:
    """Parse `KEY=TYPE:VALUE,...`."""
    return tuple(_override(item) for item in args[0].split(",") if item)


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
        raise ValueError(f"{word} is not a valid scale")
    return value


def _override(item: str) -> Override:
    key, equals, typed = item.partition("=")
    kind, colon, text = typed.partition(":")
    if not (key and equals and colon):
        raise ValueError(f"'{item}' is not KEY=TYPE:VALUE")
    if len(key.encode()) > 127 or len(text.encode()) > 127:
        raise ValueError(f"'{item:.40}...': keys and values may have at most 127 bytes")
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
