"""Resolve references by the rules of a schema's draft, to `#/$defs/...` of one document.

`$id` and `id` change the base of references, `$anchor` names a part, `$dynamicRef` and `$recursiveRef`
resolve to the outermost schema with that anchor. Metaschemas are built in; nothing is fetched.
"""

from __future__ import annotations

from typing import Any

from jsonschema_specifications import REGISTRY
from referencing import Registry, Specification
from referencing.exceptions import NoSuchResource, Unresolvable
from referencing.jsonschema import DRAFT4, DRAFT6, DRAFT7, DRAFT201909, DRAFT202012

from corral.grammar.rewrite.draft import holds_dependencies, modernize
from corral.grammar.rewrite.part import AT, NotExact, Schema, steps_of

_SPECIFICATIONS: dict[int, Specification[Any]] = {
    4: DRAFT4,
    6: DRAFT6,
    7: DRAFT7,
    2019: DRAFT201909,
    2020: DRAFT202012,
}
_BASE = "urn:corral:schema"
MAX_DEFINITIONS = 1000
_OF_RESOURCES = ("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$schema", "$vocabulary")


def localize(root: Schema, draft: int) -> Schema:
    """Rewrite the schema to draft 2020-12, with everything it references under `$defs`."""
    return _Localizer(root, draft).run()


class _Localizer:
    """Collects the definitions of one schema."""

    def __init__(self, root: Schema, draft: int) -> None:
        self._root = root
        self._draft = draft
        self._is_declared = "$schema" in root
        self._specification = _SPECIFICATIONS[draft]
        resource = self._specification.create_resource(root)
        self._uri = resource.id() or _BASE
        registry: Registry[Any] = REGISTRY.with_resource(self._uri, resource)
        self._registry = registry.crawl()
        self._names: dict[int, str] = {id(root): "#"}
        self._waiting: list[tuple[str, Any, Any]] = []
        self._anchors = _dynamic_anchors(root)

    def run(self) -> Schema:
        resolver = self._registry.resolver(self._uri)
        found = self._localize(self._root, resolver, is_root=True)
        definitions: Schema = {}
        while self._waiting:
            name, part, resolver = self._waiting.pop()
            definitions[name] = self._localize(part, resolver, is_root=True)
        return {**found, "$defs": definitions} if definitions else found

    def _localize(self, part: Any, resolver: Any, is_root: bool = False) -> Any:
        if not isinstance(part, dict):
            return part
        if not is_root:
            resolver = resolver.in_subresource(self._specification.create_resource(part))
        part = dict(part)
        found = modernize(part, self._draft, self._is_declared)
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):  # the last two become $ref
            if keyword in found:
                found = self._refer(keyword, found, resolver)
        for keyword in ("$defs", "definitions", *_OF_RESOURCES):
            found.pop(keyword, None)
        return self._inside(found, resolver)

    def _inside(self, found: Schema, resolver: Any) -> Schema:
        copy = {
            k: dict(v) if isinstance(v, dict) else list(v) if isinstance(v, list) else v
            for k, v in found.items()
        }
        for way, child in list(steps_of(found)):
            if len(way) == 1:
                copy[way[0]] = self._localize(child, resolver)
            else:
                holder: Any = copy[way[0]]
                holder[int(way[1]) if isinstance(holder, list) else way[1]] = self._localize(child, resolver)
        return copy

    def _refer(self, keyword: str, part: Schema, resolver: Any) -> Schema:
        reference = part.pop(keyword)
        try:
            resolved = self._follow(keyword, str(reference), resolver)
        except (Unresolvable, NoSuchResource) as error:
            reason = f"{reference!r:.100} is not part of the schema, and nothing is fetched"
            fault = NotExact(keyword, reason, "put the definition under $defs")
            fault.pointer = str(part.get(AT, ""))
            raise fault from error
        target = {"$ref": self._name(str(reference), resolved.contents, resolved.resolver)}
        if "$ref" in part or ("allOf" in part and keyword != "$ref"):
            return {**part, "allOf": [*part.get("allOf", []), target]}
        return {**part, **target}

    def _follow(self, keyword: str, reference: str, resolver: Any) -> Any:
        found = resolver.lookup(reference)
        if keyword == "$ref" or not isinstance(found.contents, dict):
            return found
        if keyword == "$recursiveRef":
            is_dynamic = found.contents.get("$recursiveAnchor") is True
            return self._outermost("", found) if is_dynamic else found
        name = reference.partition("#")[2]
        is_dynamic = bool(name) and found.contents.get("$dynamicAnchor") == name
        return self._outermost(name, found) if is_dynamic else found

    def _outermost(self, name: str, found: Any) -> Any:
        """Return the target of a dynamic reference, if it does not depend on the path of evaluation."""
        owners = self._anchors.get(name, [])
        if len(owners) <= 1:
            return found
        at_root = [part for part, is_at_root in owners if is_at_root]
        if not at_root:
            reason = "which schema it leads to depends on the way to it"
            raise NotExact("$dynamicRef" if name else "$recursiveRef", reason, "use $ref")
        return self._registry.resolver(self._uri).lookup(f"#{name}")

    def _name(self, reference: str, contents: Any, resolver: Any) -> str:
        if id(contents) not in self._names:
            if len(self._names) > MAX_DEFINITIONS:
                raise NotExact("$ref", f"more than {MAX_DEFINITIONS} definitions")
            name = self._free_name(reference)
            self._names[id(contents)] = f"#/$defs/{name}"
            self._waiting.append((name, contents, resolver))
        return self._names[id(contents)]

    def _free_name(self, reference: str) -> str:
        last = reference.rpartition("/")[2].rpartition("#")[2]
        name = "".join(char for char in last if char.isalnum() or char in "_-") or "part"
        taken = {known.rpartition("/")[2] for known in self._names.values()}
        return name if name not in taken else f"{name}-{len(taken)}"


def _dynamic_anchors(root: Schema) -> dict[str, list[tuple[Schema, bool]]]:
    """Return the parts by dynamic anchor, "" for recursive ones, and whether they are in the root's
    resource."""
    found: dict[str, list[tuple[Schema, bool]]] = {}
    waiting: list[tuple[Any, bool]] = [(root, True)]
    while waiting:
        part, is_at_root = waiting.pop()
        if isinstance(part, dict):
            is_at_root = is_at_root and (part is root or "$id" not in part)
            if isinstance(part.get("$dynamicAnchor"), str):
                found.setdefault(part["$dynamicAnchor"], []).append((part, is_at_root))
            if part.get("$recursiveAnchor") is True:
                found.setdefault("", []).append((part, is_at_root))
            waiting += [(child, is_at_root) for _, child in steps_of(part)]
            if holds_dependencies(part):
                waiting += [(child, is_at_root) for child in part["dependencies"].values()]
    return found
