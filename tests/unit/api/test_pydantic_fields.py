"""Parameters as fields of Pydantic's models, and as what msgspec reads."""

from __future__ import annotations

import msgspec
import pytest
from pydantic import BaseModel, ValidationError

from baton import BeamSearchParams, PoolingParams, SamplingParams, StructuredOutputsParams

ASKED = SamplingParams(n=2, stop="a", structured_outputs=StructuredOutputsParams(regex="a"))


class Hot(SamplingParams):
    """Parameters with a field more."""

    heat: int = 3


class Asked(BaseModel):
    sampling: SamplingParams
    beams: BeamSearchParams = BeamSearchParams(2, 8)
    pooling: PoolingParams = PoolingParams()


def test_models_have_parameters_as_objects_or_dictionaries() -> None:
    asked = Asked(sampling=ASKED, beams=BeamSearchParams(3, 8), pooling=PoolingParams(dimensions=4))
    assert (asked.sampling is ASKED, asked.model_dump()["pooling"]["dimensions"]) == (True, 4)
    assert Asked.model_validate_json(asked.model_dump_json()) == asked
    assert Asked.model_validate({"sampling": {"n": 3}}).sampling == SamplingParams(n=3)
    assert Asked(sampling=Hot(n=2)).sampling == Hot(n=2)
    assert "temperature" in str(Asked.model_json_schema())
    assert not [name for name in asked.model_dump()["sampling"] if name.startswith("_")]


def test_models_refuse_what_the_parameters_refuse() -> None:
    with pytest.raises(ValidationError, match="n is 0; allowed"):
        Asked.model_validate({"sampling": {"n": 0}})
    with pytest.raises(ValidationError, match="beam_width"):
        Asked.model_validate({"sampling": {}, "beams": {"max_tokens": 8}})


def test_msgspec_reads_the_parameters_that_it_has_written() -> None:
    assert msgspec.json.decode(msgspec.json.encode(ASKED), type=SamplingParams) == ASKED
    assert msgspec.convert({"n": 2}, SamplingParams) == SamplingParams(n=2)
