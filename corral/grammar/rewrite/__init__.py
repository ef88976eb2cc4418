"""Rewrite JSON Schemas with keywords that llguidance enforces exactly: schema in, schema out."""

from corral.grammar.rewrite.part import NotExact as NotExact
from corral.grammar.rewrite.part import bare as bare
from corral.grammar.rewrite.rewriter import read_draft as read_draft
from corral.grammar.rewrite.rewriter import rewrite_root as rewrite_root
from corral.grammar.rewrite.rewriter import rewrite_schema as rewrite_schema
