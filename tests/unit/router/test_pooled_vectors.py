"""Vectors as clients get them, prompts that are cut, and scores of pairs."""

from __future__ import annotations

import base64
import json
import math
import struct
from array import array
from dataclasses import replace

import pytest
import torch

from baton_core.errors import InvalidRequestError
from baton_core.requests.pooling import PoolingModel, PoolingSpec, PoolingTask, check_runner
from baton_core.worker.step_plan import PooledValues
from baton_router.http.json_pieces import json_pieces
from baton_router.http.pooling.cohere import prefix_of
from baton_router.http.pooling.requests import MAX_PROMPTS, fields_of
from baton_router.http.pooling.vectors import bytes_of, numbers_of, signs_of, text_of
from baton_router.requests.pooling import lacks_task, late_interaction, pair_counts, similarity
from baton_router.text.tokenization import kept_lengths

VALUES = (0.1, -2.5, 0.0, 448.0, 1e-3, -1e-9, 3.0, 7.25, -0.3, 1e5)
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def pooled(*rows: tuple[float, ...]) -> PooledValues:
    shape = (len(rows[0]),) if len(rows) == 1 else (len(rows), len(rows[0]))
    return PooledValues(shape=shape, values=b"".join(array("f", row).tobytes() for row in rows))


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_are_rounded_as_torch_rounds_them(dtype: str) -> None:
    finite = torch.finfo(DTYPES[dtype])
    given = torch.tensor(VALUES).clamp(finite.min, finite.max)
    expected = given.to(DTYPES[dtype]).view(torch.uint8).numpy().tobytes()
    assert bytes_of(pooled(VALUES), dtype, "little") == expected


def test_bytes_have_an_order_and_a_text() -> None:
    one = pooled((1.5, -2.0))
    assert bytes_of(one, "float32", "big") == struct.pack(">2f", 1.5, -2.0)
    assert bytes_of(one, "float32", "native") == struct.pack("=2f", 1.5, -2.0)
    assert base64.b64decode(text_of(one, "float32", "little")) == struct.pack("<2f", 1.5, -2.0)
    assert signs_of(pooled((1.0, -1.0, 0.0, 2.0, 1.0, -1.0, -1.0, -1.0, 3.0)), is_signed=False) == [152, 128]
    assert signs_of(pooled((1.0, -1.0)), is_signed=True) == [0]


def test_a_matrix_is_written_row_by_row() -> None:
    rows = tuple((float(row), -float(row)) for row in range(50))
    pieces = list(json_pieces(numbers_of(pooled(*rows))))
    assert json.loads(b"".join(pieces)) == [list(row) for row in rows]
    assert len(pieces) >= len(rows)


def test_the_type_of_an_input_finds_the_prompt_of_the_model() -> None:
    prompts = {"query": "q: ", "passage": "p: ", "Classification": "c: ", "x": "x: "}
    for input_type, prefix in (
        ("search_query", "q: "),
        ("search_document", "p: "),
        ("classification", "c: "),
        ("clustering", ""),
        ("x", "x: "),
        (None, ""),
    ):
        assert prefix_of(input_type, prompts) == prefix


@pytest.mark.parametrize(
    ("lengths", "limit", "kept"),
    [
        ([9], 4, [4]),
        ([3, 4], 9, [3, 4]),
        ([2, 20], 10, [2, 8]),
        ([20, 2], 10, [8, 2]),
        ([20, 30], 11, [5, 6]),
        ([30, 20], 11, [6, 5]),
    ],
)
def test_the_longer_text_of_a_pair_is_cut_first(lengths: list[int], limit: int, kept: list[int]) -> None:
    assert kept_lengths(lengths, limit) == kept


def test_pairs_and_their_scores() -> None:
    assert [pair_counts(1, 3), pair_counts(2, 2)] == [3, 1]
    for counts, said in (
        ((0, 1), r"a is \[\]; allowed: at least one text"),
        ((1, 0), r"b is \[\]; allowed: at least one text"),
        ((2, 1), "a is '2 texts'; allowed: one text, or as many as b has, 1"),
        ((2, 3), "a is '2 texts'; allowed: one text, or as many as b has, 3"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            pair_counts(*counts, ("a", "b"))
    assert similarity((1.0, 1.0), (1.0, 0.0)) == pytest.approx(math.sqrt(0.5))
    assert similarity((0.0,), (1.0,)) == 0.0
    for vector in torch.randn(100, 8).tolist():
        assert similarity(vector, vector) <= 1.0
        assert similarity(vector, [-one for one in vector]) >= -1.0
    one, other = torch.randn(3, 4), torch.randn(5, 4)
    expected = float((one @ other.T).max(dim=1).values.sum())
    given = (pooled(*map(tuple, rows.tolist())) for rows in (one, other))
    assert late_interaction(*given) == pytest.approx(expected, rel=1e-5)


def test_what_a_model_cannot_pool_is_refused_by_name() -> None:
    embeds = PoolingModel(tasks=(PoolingTask.EMBED,), embedding_size=64, matryoshka_dimensions=(16, 32))
    encodes = replace(embeds, is_causal=False)
    classifies = PoolingModel(tasks=(PoolingTask.CLASSIFY,), labels=("a",))
    whole = replace(embeds, matryoshka_dimensions=())
    for model, dimensions in ((embeds, 16), (embeds, 64), (whole, 64)):
        check_runner(model, PoolingSpec(task=PoolingTask.EMBED, dimensions=dimensions))
    check_runner(None, None)
    for model, spec, said in (
        (embeds, PoolingSpec(task=PoolingTask.EMBED, dimensions=8), "dimensions is 8; allowed: 16, 32, 64"),
        (
            whole,
            PoolingSpec(task=PoolingTask.EMBED, dimensions=8),
            "dimensions is 8; allowed: 64: this model",
        ),
        (
            embeds,
            PoolingSpec(task=PoolingTask.CLASSIFY),
            r"embed; for classify load the model with convert classify",
        ),
        (embeds, PoolingSpec(task=PoolingTask.EMBED, type_one_from=3), "token_type_ids is 'ones'"),
        (classifies, PoolingSpec(task=PoolingTask.CLASSIFY, dimensions=8), "dimensions is 8; allowed: none"),
        (embeds, PoolingSpec(task=PoolingTask.TOKEN_EMBED), "task is 'token_embed'; allowed: embed$"),
        (classifies, PoolingSpec(task=PoolingTask.EMBED), "allowed: classify; .* with convert embed$"),
        (
            embeds,
            None,
            "task is 'generate'; allowed: embed; for generate load the model with runner generate",
        ),
        (encodes, None, "task is 'generate'; allowed: embed$"),
        (None, PoolingSpec(task=PoolingTask.EMBED), "task is 'embed'; allowed: generate"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            check_runner(model, spec)
    classes = PoolingModel(tasks=(PoolingTask.CLASSIFY, PoolingTask.TOKEN_CLASSIFY), labels=("a", "b"))
    assert classes.scores_by is None
    assert str(lacks_task("m", classes, "embeds", PoolingTask.EMBED)) == (
        "model is 'm'; allowed: a model that embeds; this one has classify, token_classify and 2 classes"
        "; for embed run its workers with --convert embed"
    )
    assert classifies.scores_by is PoolingTask.CLASSIFY
    assert embeds.result_bytes(PoolingSpec(task=PoolingTask.EMBED, dimensions=16), 9) == 64


def test_the_fields_of_prompts_are_places_and_too_many_are_not_named() -> None:
    assert (fields_of("input", 1), fields_of("input", 2)) == (["input"], ["input[0]", "input[1]"])
    assert len(fields_of("input", MAX_PROMPTS)) == MAX_PROMPTS
    with pytest.raises(InvalidRequestError, match="input is '10000000000 prompts'; allowed: at most 2048"):
        fields_of("input", 10**10)
