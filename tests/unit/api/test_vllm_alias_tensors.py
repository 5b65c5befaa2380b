"""Functions of `vllm` that read what a router writes: vectors as bytes and as base64."""

from __future__ import annotations

import base64
import io

import pytest
import torch

from baton.vllm_alias.pooling_utils import MetadataItem, build_metadata_items, decode_pooling_output
from baton.vllm_alias.serial_utils import (
    EMBED_DTYPES,
    ENDIANNESS,
    binary2tensor,
    tensor2base64,
    tensor2binary,
)
from baton_core.worker.step_plan import PooledValues
from baton_router.http.pooling.vectors import bytes_of

ROWS = torch.tensor([[1.0, -2.5, 0.25], [448.0, 1e-3, -3.0]])
"""Numbers that every type holds, but for one."""


@pytest.mark.parametrize("endianness", ENDIANNESS)
@pytest.mark.parametrize("dtype", EMBED_DTYPES)
def test_vectors_of_a_router_are_read_in_every_form(dtype: str, endianness: str) -> None:
    parts = [
        bytes_of(PooledValues(shape=(3,), values=row.numpy().tobytes()), dtype, endianness) for row in ROWS
    ]
    assert parts == [tensor2binary(row, dtype, endianness) for row in ROWS]
    items = build_metadata_items(dtype, endianness, (3,), len(ROWS))
    rows = decode_pooling_output(items[::-1], b"".join(parts))
    expected = ROWS.to(EMBED_DTYPES[dtype].torch_dtype)
    assert [row.dtype for row in rows] == [expected.dtype] * 2
    assert torch.equal(torch.stack([row.float() for row in rows]), expected.float())


def test_the_place_of_a_result_is_what_the_header_says() -> None:
    item = MetadataItem(index=0, embed_dtype="float16", endianness="big", start=2, end=6, shape=[1, 2])
    (rows,) = decode_pooling_output([item], bytes.fromhex("ffff3c00c000"))
    assert rows.tolist() == [[1.0, -2.0]]


@pytest.mark.parametrize(
    ("form", "said"),
    [(("float64", "big"), "embed_dtype is 'float64'"), (("float32", "up"), "endianness is 'up'")],
)
def test_another_form_is_refused(form: tuple[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        binary2tensor(bytes(8), (-1,), *form)


def test_prompt_embeds_are_written_as_torch_saves_them() -> None:
    stored = io.BytesIO(base64.b64decode(tensor2base64(ROWS)))
    assert torch.equal(torch.load(stored, weights_only=True), ROWS)
