"""The fill-in-the-middle tokens of the fake vocabulary."""

from __future__ import annotations

from tests.unit.fake import LETTERS

PRE, SUF, MID, REP, SEP, PAD = (1 + LETTERS.index(mark) for mark in ".,;:!?")
