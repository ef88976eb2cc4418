"""What the whole run is about: the model, the competitors, how often, and which options the servers get."""

from __future__ import annotations

from dataclasses import dataclass

from bench.competitor import Competitor
from bench.process import Corral, RawLoop

N_SEQ = 8
N_CTX = 3072 * N_SEQ
MAX_ITL_MS = 200
# The file as it is, to be compared with plain libllama on the same one.
AS_GIVEN = ("--transcode", "off")
# Whatever makes the file faster, as a user would start it.
AS_USED = ("--transcode", "auto")


@dataclass(frozen=True, slots=True)
class Setup:
    model: str
    flash_attn: str = "off"
    rounds: int = 3
    competitors: tuple[Competitor, ...] = ()

    def raw(self, n_ctx: int = N_CTX, n_seq: int = N_SEQ) -> RawLoop:
        """The yardstick, on the file as it is."""
        return RawLoop("bench.raw", self.model, n_ctx, n_seq, self.flash_attn)

    def corral(self, n_ctx: int = N_CTX, n_seq: int = N_SEQ) -> Corral:
        """The server in the shape of the yardstick."""
        shape = ("-c", n_ctx, "-np", n_seq, "--max-itl-ms", MAX_ITL_MS, "-fa", self.flash_attn)
        return Corral(self.model, *AS_GIVEN, *shape)

    def corral_as_used(self, n_ctx: int, n_seq: int) -> Corral:
        """The server with its own defaults."""
        return Corral(self.model, *AS_USED, "-c", n_ctx, "-np", n_seq)
