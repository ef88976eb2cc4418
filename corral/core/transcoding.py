"""How the encoding of a model's weights is chosen (`--transcode`), unless one is named."""

from __future__ import annotations

AUTO = "auto"  # what this CPU is fastest with, measured when the model is first opened
TUNED = "tuned"  # what `corral tune` has found
OFF = "off"  # that of the file
WAYS = (AUTO, TUNED, OFF)
