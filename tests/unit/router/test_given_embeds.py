"""Embeddings as clients send them: what torch and safetensors write is read, anything else refused."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from baton_core.errors import ContextLengthError, InvalidRequestError, RequestError
from baton_router.embeds.given_embeds import EmbedsLimits, read_encoded
from baton_router.embeds.torch_tensor import NoTensorError, read_torch_tensor
from baton_router.streams.memory import EmbedsMemory
from tests.builders import make_request
from tests.fuzz.hostile_bytes import hostile, within_memory
from tests.prompt_embeds import embeds_of, encoded, safetensors_file, torch_file

ROWS = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
LIMITS = EmbedsLimits(hidden_size=8, max_model_len=6)
read = partial(read_encoded, "prompt_embeds", limits=LIMITS)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize(
    "write",
    [
        torch_file,
        partial(torch_file, pickle_protocol=4),
        lambda rows: torch_file(torch.nn.Parameter(rows)),
        lambda rows: torch_file(rows[None]),
        lambda rows: torch_file(torch.cat((rows, rows, rows))[5:10]),
        lambda rows: safetensors_file(anything=rows),
        lambda rows: safetensors_file(prompt_embeds=rows, other=rows + 1),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_are_read_as_they_were_written(write: Callable[[Tensor], bytes], dtype: torch.dtype) -> None:
    rows = ROWS.to(dtype)
    assert read(text=encoded(write(rows))) == embeds_of(rows)


class Harmful:
    """Would leave a file if it were unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self._path,)


def compressed(content: bytes) -> bytes:
    """Return an archive with the same files, deflated."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return out.getvalue()


def with_pickle(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/data/0", bytes(160))
    return out.getvalue()


def test_what_is_no_dense_tensor_is_refused_by_name(tmp_path: Any) -> None:
    path = str(tmp_path / "made")
    refused = {
        "no dense tensor, but a call of torch.serialization _get_layout": torch_file(ROWS.to_sparse()),
        "numbers of a DoubleStorage": torch_file(ROWS.double()),
        "numbers of a UntypedStorage": torch_file(ROWS.to(torch.float8_e4m3fn)),
        "no dense tensor, but a call of torch._utils _rebuild_meta": torch_file(
            torch.empty(5, 8, device="meta")
        ),
        "a view of shape [5, 8] and strides [1, 5]": torch_file(ROWS.reshape(8, 5).T),
        "a view of shape [4, 8] and strides [0, 1]": torch_file(ROWS[:1].expand(4, 8)),
        "a pickle with the opcode EMPTY_DICT": torch_file({"prompt_embeds": ROWS}),
        "a pickle with the opcode EMPTY_LIST": torch_file([ROWS]),
        "an archive of compressed files": compressed(torch_file(ROWS)),
        "an archive of many files": torch_file(ROWS) + b"PK\x01\x02" * 40,
        "no dense tensor, but a call of posix mkdir": with_pickle(pickle.dumps(Harmful(path), 2)),
        "a damaged file": torch_file(ROWS)[:-30],
        "numbers of dtype 'F64'": safetensors_file(a=ROWS.double()),
        "a file of neither format, or of several": safetensors_file(a=ROWS, b=ROWS + 1),
        "a file of neither format": struct.pack("<Q", 2**60) + b"{}",
    }
    for reason, content in refused.items():
        with pytest.raises(InvalidRequestError) as caught:
            read(text=encoded(content))
        assert str(caught.value).startswith("prompt_embeds is "), reason
        assert reason in caught.value.shown.replace("\\", ""), caught.value
    assert not os.path.exists(path)


def test_shapes_that_the_model_lacks_are_refused() -> None:
    for rows in (ROWS[:, :7], ROWS[0], ROWS[:0], torch.stack((ROWS, ROWS))):
        with pytest.raises(
            InvalidRequestError, match=r"prompt_embeds shape is \[.*\]; allowed: \[1 to 5 tok"
        ):
            read(
                text=encoded(torch_file(rows.contiguous()))
                if rows.numel()
                else encoded(safetensors_file(a=rows))
            )
    with pytest.raises(ContextLengthError, match="prompt_embeds is '6 tokens'; allowed: 1 to 5 tokens"):
        read(text=encoded(torch_file(torch.zeros(6, 8))))
    for text in ("AAA", "é", 5, None, "=" * 8):
        with pytest.raises(InvalidRequestError, match=r"prompt_embeds is .*; allowed: base64 of "):
            read(text=text)


@given(hostile(st.sampled_from([torch_file(ROWS), torch_file(torch.nn.Parameter(ROWS), pickle_protocol=4)])))
def test_damaged_files_are_read_or_refused(content: bytes) -> None:
    within_memory(read_torch_tensor, content, NoTensorError)


@given(hostile(st.just(safetensors_file(prompt_embeds=ROWS))))
def test_damaged_text_is_read_or_refused(content: bytes) -> None:
    within_memory(lambda text: read(text=text), encoded(content), InvalidRequestError)  # type: ignore[arg-type]


def test_open_requests_hold_embeddings_up_to_a_limit() -> None:
    embeds = embeds_of(ROWS)
    specs = [replace(make_request(), prompt_embeds=(embeds,))]
    memory = EmbedsMemory(max_bytes=2 * len(embeds.data))
    with memory.hold(specs), memory.hold(specs):
        with pytest.raises(RequestError, match=r"prompt_embeds of other requests take 320 bytes, these 160;"):
            memory.hold(specs).__enter__()
        with memory.hold([make_request()]):
            pass
    with memory.hold(specs * 2):
        pass
