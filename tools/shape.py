"""Counts what the shape of the front costs, and compares each count with its goal: `python tools/shape.py`.

Counts by AST, without importing the product. `--check` fails if a count that has reached its goal (REACHED)
has grown beyond it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FRONT = ("server", "features", "models", "api", "generate", "schema", "mcp", "telemetry")
OPTIONAL = (
    "batch",
    "mcp",
    "monitor",
    "journal",
    "durable",
    "chats",
    "sharing",
    "shared",
    "vertex",
    "tuning",
)
ROUTE_DECLARATIONS = {"ApiRoute", "get", "post", "put", "delete", "route", "patch"}
ASGI_KEYS = {
    *("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path"),
    *(
        "headers",
        "client",
        "server",
        "state",
        "extensions",
        "app",
        "route",
        "endpoint",
        "path_params",
        "router",
    ),
}
PATH = re.compile(r"/[A-Za-z0-9_{}./-]*")
ROUTE_PARTS = ("corral.api.read_model", "corral.api.native.slot_call")  # what some routes share
COMPOSITION = ("HttpServer", "create_app", "open_services", "RecordMiddleware")


@dataclass(frozen=True)
class Row:
    name: str
    count: Callable[[], int]
    goal: int
    is_reached: bool = False


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax tree of every module of the product, by its dotted name."""
    found = {}
    for path in sorted((ROOT / "corral").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


@cache
def nodes(name: str) -> list[ast.AST]:
    """Return all nodes of a module, walked once."""
    return list(ast.walk(modules()[name]))


def front(*others: str) -> Iterator[str]:
    """Yield the modules of the front's packages, and of others."""
    return (name for name in modules() if name.split(".")[1:2] and name.split(".")[1] in (*FRONT, *others))


def n_path_literals() -> int:
    """Count string literals that are paths of the API, except the arguments of route declarations."""
    known = {path.split("/")[1] for path in _declared_paths() if len(path) > 1}
    return sum(
        1
        for name in front()
        for literal in _strings_outside_declarations(name)
        if PATH.fullmatch(literal.value) and literal.value.strip("/").split("/")[0] in known
    )


def _declared_paths() -> set[str]:
    return {
        literal.value
        for name in front()
        for call in _declarations(name)
        for literal in ast.walk(call)
        if isinstance(literal, ast.Constant)
        and isinstance(literal.value, str)
        and literal.value.startswith("/")
    }


def _declarations(name: str) -> Iterator[ast.Call]:
    """Yield the calls that declare routes: decorators of a router, and `ApiRoute(...)`."""
    for node in nodes(name):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Attribute):
            is_router = isinstance(called.value, ast.Name) and "router" in called.value.id
            if is_router and called.attr in ROUTE_DECLARATIONS:
                yield node
        elif isinstance(called, ast.Name) and called.id in ("ApiRoute", "Route", "Mount"):
            yield node


def _strings_outside_declarations(name: str) -> Iterator[ast.Constant]:
    inside = {id(node) for call in _declarations(name) for node in ast.walk(call)}
    documented = {
        id(node.body[0].value)
        for node in nodes(name)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes(name):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) not in inside and id(node) not in documented:
            yield node


def n_functions_with_request() -> int:
    """Count functions outside of route modules with a parameter of starlette's `Request`."""
    return sum(
        1
        for name in front("media", "storage")
        if not _has_routes(name)
        for node in nodes(name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(
            each.annotation is not None and re.search(r"\bRequest\b", ast.unparse(each.annotation))
            for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        )
        and _imports_request(name)
    )


def _has_routes(name: str) -> bool:
    if name in ROUTE_PARTS or name.endswith("routes"):
        return True
    targets = (node.targets for node in modules()[name].body if isinstance(node, ast.Assign))
    return any(isinstance(each, ast.Name) and each.id == "router" for some in targets for each in some)


def _imports_request(name: str) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("starlette")
        and any(each.name == "Request" for each in node.names)
        for node in nodes(name)
    )


@cache
def calls() -> Counter[str]:
    """Return how often each function or class is called by its plain name."""
    return Counter(
        node.func.id
        for name in modules()
        for node in nodes(name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    )


def n_scope_keys() -> int:
    """Count the keys of our own that are kept in an ASGI scope."""
    keys = set()
    for name in front("media"):
        constants = {
            target.id: node.value.value
            for node in modules()[name].body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in nodes(name):
            key = _scope_key(node)
            if isinstance(key, ast.Name) and isinstance(constants.get(key.id), str):
                keys.add(constants[key.id])
            elif isinstance(key, ast.Constant) and key.value not in ASGI_KEYS:
                keys.add(f"{name}:{key.value}")
    return len(keys)


def _scope_key(node: ast.AST) -> ast.expr | None:
    """Return the key with which a scope is read or written here."""
    if isinstance(node, ast.Subscript) and _is_scope(node.value):
        return node.slice
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("get", "setdefault")
    ):
        return node.args[0] if node.args and _is_scope(node.func.value) else None
    return None


def _is_scope(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "scope") or (
        isinstance(node, ast.Attribute) and node.attr in ("scope", "_scope")
    )


def n_context_vars() -> int:
    return calls()["ContextVar"]


@cache
def imports() -> dict[str, set[str]]:
    """Return what each module of the product imports when it is imported itself (not under TYPE_CHECKING, and
    not in functions)."""
    names = set(modules())
    found: dict[str, set[str]] = {}
    for name, tree in modules().items():
        found[name] = set()
        for node in _imported_at_once(tree.body):
            if isinstance(node, ast.Import):
                wanted = [each.name for each in node.names]
            else:
                wanted = [node.module or "", *(f"{node.module}.{each.name}" for each in node.names)]
            found[name] |= {each for each in wanted if each in names}
    return found


def _imported_at_once(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from _imported_at_once([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from _imported_at_once(
                [*node.body, *node.orelse, *(x for h in node.handlers for x in h.body)]
            )


def largest_cycle() -> int:
    """Return the number of modules and packages in the largest circle of imports among the children of one
    package (0 if there is none)."""
    packages = {name.rsplit(".", 1)[0] for name in modules() if "." in name}
    return max(_largest_cycle(package) for package in packages)


def _largest_cycle(package: str) -> int:
    graph: dict[str, set[str]] = {}
    for name, imported in imports().items():
        child = _child(package, name)
        if child:
            graph.setdefault(child, set()).update(
                other for each in imported if (other := _child(package, each)) and other != child
            )
    reach = {node: _reachable(graph, node) for node in graph}
    return max((sum(1 for b in graph if a in reach[b] and b in reach[a]) for a in graph), default=0)


def _child(package: str, name: str) -> str:
    return name.split(".")[package.count(".") + 1] if name.startswith(f"{package}.") else ""


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        for each in graph.get(left.pop(), ()):
            if each not in found:
                found.add(each)
                left.append(each)
    return found


def n_exemptions() -> int:
    text = (ROOT / "pyproject.toml").read_text()
    found = re.search(r"skip_descendants = \[(.*?)\]", text, re.S)
    return len(re.findall(r'"', found[1])) // 2 if found else 0


def chat_imports() -> set[str]:
    return _reachable(imports(), "corral.api.openai.chat")


def n_chat_features() -> int:
    """Count optional features' modules among what the chat route imports."""
    words = re.compile(rf"(?:^|[._])(?:{'|'.join(OPTIONAL)})(?:$|[._])")
    return sum(1 for name in chat_imports() if words.search(name))


def n_fake_requests() -> int:
    """Count places that call an ASGI application, or a route, with a request that no client sent."""
    return sum(
        1
        for name in front()
        for node in nodes(name)
        if _is_made_scope(node)
        or (isinstance(node, ast.Call) and any(_is_receive(each) for each in node.args))
        or (_is_changed_request(node) and not name.startswith("corral.server"))
    )


def _is_made_scope(node: ast.AST) -> bool:
    if not isinstance(node, ast.Dict):
        return False
    keys = {each.value for each in node.keys if isinstance(each, ast.Constant)}
    return {"type", "method", "path"} <= keys


def _is_receive(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Receive"


def _is_changed_request(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Request"
        and (bool(node.args) and isinstance(node.args[0], ast.Dict))
    )


ROWS = (
    Row("path literals outside route declarations", n_path_literals, 10, is_reached=True),
    Row("functions outside route modules that take a Request", n_functions_with_request, 0, is_reached=True),
    Row("calls of state_of()", lambda: calls()["state_of"], 0, is_reached=True),
    Row("scope keys of our own", n_scope_keys, 1, is_reached=True),
    Row("ContextVars", n_context_vars, 1, is_reached=True),
    Row("largest circle of imports among the children of a package", largest_cycle, 0, is_reached=True),
    Row("packages exempt from the rule against cycles", n_exemptions, 0, is_reached=True),
    Row("modules that api/openai/chat.py imports", lambda: len(chat_imports()), 150, is_reached=True),
    Row("optional features' modules among these", n_chat_features, 0, is_reached=True),
    *(
        Row(f"calls of {name}()", partial(calls().__getitem__, name), 1, is_reached=True)
        for name in COMPOSITION
    ),
    Row("places that fake a request", n_fake_requests, 0, is_reached=True),
)


def main(arguments: list[str]) -> int:
    counts = [(row, row.count()) for row in ROWS]
    width = max(len(row.name) for row in ROWS)
    print(f"{'':{width}}  now  goal")
    for row, count in counts:
        print(f"{row.name:{width}}  {count:3}  {row.goal:4}{'' if count > row.goal else '  reached'}")
    grown = [row.name for row, count in counts if row.is_reached and count > row.goal]
    if "--check" in arguments and grown:
        print(f"grown beyond the goal that was reached: {', '.join(grown)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
