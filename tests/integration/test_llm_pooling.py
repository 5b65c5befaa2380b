"""`LLM`, `LLMEngine` and `AsyncLLMEngine` with models that pool, against Transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedModel,
    Qwen3Config,
    Qwen3Model,
)

from baton import LLM, AsyncLLMEngine, EngineArgs, LLMEngine, PoolingParams, RequestOutput, SamplingParams
from baton_core.errors import InvalidConfigError, InvalidRequestError, RequestError
from tests.models import make_prompt
from tests.pooling import make_pooling_model

QWEN: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256}
PROMPTS = [make_prompt(length, seed=length) for length in (5, 40, 1, 100, 64)]
SMALL: dict[str, Any] = {"dtype": "float32", "block_size": 16, "kv_cache_memory_bytes": 2**24}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("bert")
    return folder, make_pooling_model(folder, BertConfig, BertModel)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("qwen3")
    return folder, make_pooling_model(folder, Qwen3Config, Qwen3Model, **QWEN)


def states(model: PreTrainedModel, prompt: Sequence[int]) -> Tensor:
    with torch.no_grad():
        hidden: Tensor = model(torch.tensor([prompt])).last_hidden_state[0]
    return hidden


def embeddings(llm: LLM, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[Tensor]:
    return [torch.tensor(one.outputs.embedding) for one in llm.embed(list(prompts), use_tqdm=False)]


def test_an_encoder_embeds_whole_prompts_of_any_length_beside_each_other(
    bert: tuple[Path, PreTrainedModel],
) -> None:
    llm = LLM(str(bert[0]), **SMALL, max_num_batched_tokens=64)
    for prompt, one in zip(PROMPTS, embeddings(llm), strict=True):
        torch.testing.assert_close(one, normalize(states(bert[1], prompt)[0], dim=0), atol=1e-5, rtol=1e-5)
    assert llm.runner_type == "pooling"
    assert llm.supported_tasks == ("embed", "token_embed")


def test_a_decoder_embeds_in_chunks_and_from_the_prefix_cache(qwen3: tuple[Path, PreTrainedModel]) -> None:
    llm = LLM(str(qwen3[0]), **SMALL, runner="pooling", max_num_batched_tokens=32)
    expected = [normalize(states(qwen3[1], prompt)[-1], dim=0) for prompt in PROMPTS]
    torch.testing.assert_close(embeddings(llm), expected, atol=1e-5, rtol=1e-5)
    again = llm.embed(PROMPTS, use_tqdm=False)
    assert [one.num_cached_tokens for one in again] == [0, 32, 0, 96, 48]
    torch.testing.assert_close(
        [torch.tensor(one.outputs.embedding) for one in again], expected, atol=1e-5, rtol=1e-5
    )


def test_tokens_are_embedded_without_the_prefix_cache(qwen3: tuple[Path, PreTrainedModel]) -> None:
    llm = LLM(str(qwen3[0]), **SMALL, runner="pooling", max_num_batched_tokens=64)
    embeddings(llm)
    (output,) = llm.encode([PROMPTS[1]], pooling_task="token_embed", use_tqdm=False)
    expected = normalize(states(qwen3[1], PROMPTS[1]), dim=-1)
    torch.testing.assert_close(output.outputs.data, expected, atol=1e-5, rtol=1e-5)
    assert output.num_cached_tokens == 0
    with pytest.raises(RequestError, match="prompt is '100 tokens'; allowed: 1 to 64 tokens"):
        llm.encode([PROMPTS[3]], pooling_task="token_embed", use_tqdm=False)


def test_embeddings_do_not_depend_on_their_neighbours(bert: tuple[Path, PreTrainedModel]) -> None:
    llm = LLM(str(bert[0]), **SMALL, batch_invariant=True)
    together = embeddings(llm)
    alone = [embeddings(llm, [prompt])[0] for prompt in PROMPTS]
    assert all(torch.equal(one, other) for one, other in zip(together, alone, strict=True))


def test_pairs_are_scored_by_a_cross_encoder(tmp_path: Path) -> None:
    model = make_pooling_model(tmp_path, BertConfig, BertForSequenceClassification, num_labels=1)
    llm = LLM(str(tmp_path), **SMALL)
    first, second = PROMPTS[0], PROMPTS[1]
    tokens = {"prompt_token_ids": [*first, *second], "token_type_ids": [0] * len(first) + [1] * len(second)}
    with torch.no_grad():
        types = torch.tensor([tokens["token_type_ids"]])
        expected = model(torch.tensor([[*first, *second]]), token_type_ids=types).logits[0].sigmoid()
    (output,) = llm.classify([tokens], use_tqdm=False)
    assert output.outputs.probs == pytest.approx(expected.tolist(), abs=1e-5)
    scores = llm.score("What is os.path?", ["A module.", "os.path joins paths."], use_tqdm=False)
    assert [0 < one.outputs.score < 1 for one in scores] == [True, True]
    (raw,) = llm.encode([tokens], PoolingParams(use_activation=False), pooling_task="score", use_tqdm=False)
    assert raw.outputs.data.sigmoid().tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    (left,) = llm.classify(
        [[*second, *first]],
        PoolingParams(task="score"),
        use_tqdm=False,
        tokenization_kwargs={"truncate_prompt_tokens": len(first), "truncation_side": "left"},
    )
    assert left.prompt_token_ids == first
    with pytest.raises(InvalidRequestError, match="prompt_embeds is 'embeddings'; allowed: texts and token"):
        llm.classify({"prompt": "a", "prompt_embeds": torch.zeros(1, 64)})
    with pytest.raises(
        InvalidRequestError, match="data_1 is '2 texts'; allowed: one text, or as many as data_2 has, 3"
    ):
        llm.score(["a", "b"], ["a", "b", "c"])


def test_methods_of_the_other_kind_say_what_to_do(qwen3: tuple[Path, PreTrainedModel]) -> None:
    llm = LLM(str(qwen3[0]), **SMALL, runner="pooling")
    for method in (llm.generate, lambda prompt: llm.chat([{"role": "user", "content": prompt}])):
        with pytest.raises(InvalidRequestError, match=r"embed, token_embed; .* with runner generate"):
            method("a")
    with pytest.raises(InvalidRequestError, match=r"embed, token_embed; .* with convert classify"):
        llm.classify("a")
    with pytest.raises(InvalidRequestError, match="dimensions is 8; allowed: "):
        llm.embed("a", PoolingParams(dimensions=8))
    with pytest.raises(InvalidRequestError, match="task is 'embed'; allowed: classify"):
        llm.encode("a", PoolingParams(task="embed"), pooling_task="classify")
    with pytest.raises(InvalidRequestError, match=r"pooling_task is 'x'; allowed: embed, .*, score"):
        llm.encode("a", pooling_task="x")
    for wrong in ({"prompt": "a"}, [1, 2], [{"content": []}], None, 5):
        with pytest.raises(InvalidRequestError, match=r"data_2 is .*; allowed: a text, or a list of texts"):
            llm.score("a", wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"output_type is .*; allowed: PoolingRequestOutput"):
        llm.wait_for_completion(RequestOutput)
    for wrong in (SamplingParams(), [SamplingParams()], "embed"):
        with pytest.raises(InvalidRequestError, match=r"pooling_params is .*; allowed: "):
            llm.encode(["a"], wrong)  # type: ignore[arg-type]
    generating = LLM(**SMALL)
    for method, task in (
        (generating.embed, "embed"),
        (generating.classify, "classify"),
        (generating.encode, "pooling"),
        (lambda prompt: generating.score(prompt, prompt), "score"),
    ):
        said = rf"task is '{task}'; allowed: generate: .* runner pooling"
        with pytest.raises(InvalidRequestError, match=said):
            method("a")
    with pytest.raises(InvalidConfigError, match="convert is 'embed'; allowed with runner generate: none"):
        EngineArgs(runner="generate", convert="embed")


def test_the_engines_take_pooling_params(qwen3: tuple[Path, PreTrainedModel]) -> None:
    expected = normalize(states(qwen3[1], PROMPTS[0])[-1], dim=0)
    args = EngineArgs(str(qwen3[0]), **SMALL, runner="pooling")
    engine = LLMEngine.from_engine_args(args)
    assert engine.add_request("one", PROMPTS[0], PoolingParams()) == "one"
    with pytest.raises(InvalidRequestError, match="task is 'generate'"):
        engine.add_request("two", PROMPTS[0], SamplingParams())
    outputs = [output for _ in range(3) for output in engine.step()]
    assert [(one.request_id, one.finished) for one in outputs] == [("one", True)]
    data: Any = outputs[0].outputs
    torch.testing.assert_close(data.data, expected, atol=1e-5, rtol=1e-5)

    async def encode() -> list[Any]:
        waiting = AsyncLLMEngine.from_engine_args(args)
        try:
            return [one async for one in waiting.encode(PROMPTS[0], PoolingParams(task="embed"), "three")]
        finally:
            waiting.shutdown()

    (output,) = asyncio.run(encode())
    torch.testing.assert_close(output.outputs.data, expected, atol=1e-5, rtol=1e-5)
