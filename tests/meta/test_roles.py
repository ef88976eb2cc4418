"""The table of roles in the documentation is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

from corral.core.key_role import KeyRole, Permission

ROOT = Path(__file__).parents[2]


def rows() -> list[list[str]]:
    text = (ROOT / "docs/background/security.md").read_text()
    (section,) = re.findall(r"^## Roles\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    lines = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_what_roles_may_do():
    head, *permissions = [row for row in rows() if len(row) == 2 + len(KeyRole)]
    roles = [KeyRole(name.strip("`")) for name in head[2:]]
    assert roles == list(KeyRole)
    told = {Permission(name.strip("`")): cells for name, _, *cells in permissions}
    assert told == {each: ["yes" if role.may(each) else "no" for role in roles] for each in Permission}
