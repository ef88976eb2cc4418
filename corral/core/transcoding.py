"""How the encoding of a model's weights is chosen (`--transcode`), unless one is named."""

from __future__ import annotations

AUTO = "auto"  # what `corral tune` has found to be the fastest here, or what Corral knows of the model
OFF = "off"  # that of the file
TUNED = "tuned"  # an older name of `auto`
