"""String formats as regular expressions, since llguidance supports few of them.

If only a library could recognize all texts of a format (international names, expressions), its pattern
allows a subset: every text it allows is valid.
"""

from __future__ import annotations

from typing import Any

from corral.grammar.rewrite.part import Schema

_HEX = "[0-9a-fA-F]"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"({_BYTE}\.){{3}}{_BYTE}"
_LABEL = "([a-z0-9]|[a-z0-9]{2}|[a-z0-9][a-z0-9-][a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?)"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,3}}"
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,16}"
_PCT = f"%{_HEX}{{2}}"
_CHAR = rf"([a-zA-Z0-9._~!$&'()*+,;=@-]|{_PCT})"  # of a path, without `:`
_SEGMENT = rf"({_CHAR}|:)*"
_QUERY = rf"(\?({_CHAR}|[:/?])*)?(#({_CHAR}|[:/?])*)?"
_AUTHORITY = rf"//({_HOST}|{_IPV4})(:[0-9]{{1,4}})?(/{_SEGMENT})*"
_RELATIVE = rf"({_AUTHORITY}|/({_CHAR}({_CHAR}|:)*(/{_SEGMENT})*)?|{_CHAR}+(/{_SEGMENT})*|){_QUERY}"
_POINTER = "(/([^~/]|~[01])*)*"
_VARIABLE = r"[a-zA-Z0-9_]+(:[1-9][0-9]{0,3}|\*)?"
_UUID = f"{_HEX}{{8}}-{_HEX}{{4}}-%s{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}"

# Regular expressions that every dialect supports: characters, classes, one level of groups, quantifiers.
_SIGN = r"[a-zA-Z0-9_ :;,=@!%&~#/\"'<>-]|\\[dDwWsSnrt.^$|?*+()\[\]{}\\/]|\."
_CLASS = r"\[\^?([a-zA-Z0-9_ .,]|a-z|A-Z|0-9|\\[dws.\]\\-])+\]"
_PLAIN = rf"({_SIGN}|{_CLASS})"
_TIMES = r"([*+?]|\{[1-9]\}|\{[1-9],\}|\{[0-4],[5-9]\})?"
_GROUP = rf"\((\?:)?({_PLAIN}{_TIMES})+(\|({_PLAIN}{_TIMES})+)*\)"
_REGEX = rf"\^?(({_PLAIN}|{_GROUP}){_TIMES})*(\|(({_PLAIN}|{_GROUP}){_TIMES})+)*\$?"

_PATTERNS: dict[str, str] = {
    "uri-reference": _RELATIVE,
    "iri-reference": _RELATIVE,
    "iri": rf"[a-zA-Z][a-zA-Z0-9+.-]{{0,15}}:{_AUTHORITY}{_QUERY}",
    "uri-template": rf"({_CHAR}|[:/?#]|\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\}})*",
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(0|[1-9][0-9]*)(#|{_POINTER})",
    "idn-hostname": _HOST,
    "idn-email": rf"{_ATOM}(\.{_ATOM})*@{_HOST}",
    "regex": _REGEX,
    "byte": "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    "uuid1": _UUID % "1",
    "uuid3": _UUID % "3",
    "uuid4": _UUID % "4",
    "uuid5": _UUID % "5",
    "ipv4interface": rf"{_IPV4}(/(3[0-2]|[12]?[0-9]))?",
}
# For property names, where llguidance's own formats cannot be used.
_NAMES: dict[str, str] = {
    "uuid": f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "ipv4": _IPV4,
}
# Hints without any rule for the text.
_HINTS = frozenset(["password", "binary", "path", "file-path", "directory-path"])


def pattern_of(name: Any) -> str | None:
    """Return the pattern of a format; None if there is none."""
    found = _PATTERNS.get(name) or _NAMES.get(name) if isinstance(name, str) else None
    return f"^({found})$" if found else None


def say_format(schema: Schema) -> Schema:
    """Replace the format of one part by a pattern, if it has one of those above."""
    name = schema.get("format")
    if not isinstance(name, str) or not (name in _PATTERNS or name in _HINTS):
        return schema
    rest = {k: v for k, v in schema.items() if k != "format"}
    pattern = None if name in _HINTS else pattern_of(name)
    if pattern is None:
        return rest
    if "pattern" not in rest:
        return {**rest, "pattern": pattern}
    return {**rest, "allOf": [*rest.get("allOf", []), {"pattern": pattern}]}
