"""Check a JSON value against its schema while it grows."""

from corral.grammar.check.checker import Checker as Checker
from corral.grammar.check.mark import mark_checks as mark_checks
