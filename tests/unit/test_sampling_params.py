"""Requests, options and settings have the same sampling parameters."""

from __future__ import annotations

import pytest

from corral.cli.options import OPTIONS
from corral.core.params import SamplingParams
from corral.core.sampling_params import PARAMS, option_names
from corral.schema.completion import GenerationFields


def test_every_setting_of_sampling_is_in_the_table():
    assert set(SamplingParams.__struct_fields__) <= PARAMS.keys()


@pytest.mark.parametrize("name", PARAMS)
def test_requests_and_options_follow_the_table(name):
    row, field = PARAMS[name], GenerationFields.model_fields[name]
    assert field.description == row.help
    option = next((option for option in OPTIONS if option.names == option_names(name)), None)
    assert (option is not None) == bool(option_names(name))
    if option is not None:
        assert option.target == (row.setting or f"sampling.{name}")
        low, high = row.clamp or row.limits
        assert low <= option.low <= option.high <= high
    if row.clamp is None and field.annotation in (int, float) and name != "seed":
        limits = {
            key: getattr(part, key) for part in field.metadata for key in ("ge", "le") if hasattr(part, key)
        }
        assert (limits["ge"], limits["le"]) == row.limits
