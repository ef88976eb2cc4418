"""Other servers to compare with: `NAME=URL` of a running one, or `NAME=PROGRAM` to be started here."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from bench.client import get
from bench.process import Server
from corral.llama.hardware import physical_cores


@dataclass(frozen=True, slots=True)
class Competitor:
    name: str
    where: str

    @property
    def is_program(self) -> bool:
        return "://" not in self.where

    @contextlib.asynccontextmanager
    async def serve(self, model: str, n_ctx: int, n_seq: int, n_threads: int = 0) -> AsyncIterator[str]:
        """The address of a server on the model, with `n_seq` slots that share `n_ctx` evenly."""
        if not self.is_program:
            yield self.where
            return
        options = ("-c", n_ctx, "-np", n_seq, "-t", n_threads or physical_cores())
        with contextlib.closing(Server(self.where, model, *options)) as server:
            await server.healthy_s()
            yield server.url

    async def check(self, model: str, n_ctx: int, n_seq: int) -> None:
        """Refuse one that is running with another model, or in another shape."""
        if self.is_program:
            return
        status, body = await get(self.where, "/props")
        if status != 200:
            raise SystemExit(f"{self.name} at {self.where} does not answer")
        props = json.loads(body)
        n_slots = props.get("total_slots", n_seq)
        n_ctx_slot = props.get("default_generation_settings", {}).get("n_ctx", n_ctx)
        if n_slots < n_seq or n_ctx_slot < n_ctx // n_seq:
            raise SystemExit(f"{self.name} has to be started with at least -np {n_seq} -c {n_ctx}")
        theirs = Path(props.get("model_path", model)).name
        if theirs != Path(model).name:
            raise SystemExit(f"{self.name} serves {theirs}, not {Path(model).name}: give it the same file")


def parse_competitor(text: str) -> Competitor:
    """`NAME=URL` or `NAME=PROGRAM`, for argparse."""
    name, equals, where = text.partition("=")
    if not (name and equals and where):
        raise argparse.ArgumentTypeError(f"'{text}' is neither NAME=URL nor NAME=PROGRAM")
    competitor = Competitor(name, where.rstrip("/"))
    if competitor.is_program and not (Path(where).is_file() and os.access(where, os.X_OK)):
        raise argparse.ArgumentTypeError(f"'{where}' is neither an address nor a program")
    return competitor
