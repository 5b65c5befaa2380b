"""Prompts of embeddings: the tokens of the ids that they stand for, and of Transformers, wherever they go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from baton import LLM
from baton_core.errors import InvalidRequestError
from baton_core.prompt_embeds import PLACEHOLDER
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from baton_core.sessions.worker_info import Role
from baton_router.requests.request_limits import RequestLimits
from baton_router.text.prompts import TokenIds
from tests.integration.http_router import chunks_of, client_of, error_of
from tests.integration.router_cluster import MODEL, PROMPT, TOKENIZER, serving
from tests.integration.tiny_llm import greedy, tiny_args
from tests.integration.worker_cluster import working
from tests.models import make_model, make_prompt
from tests.prompt_embeds import embeds_of, encoded, safetensors_file, torch_file
from tests.reference import Job
from tests.sim.checks import check_finished
from tests.sim.torch_cluster import Backend, Shape, TorchCluster

NUM_TOKENS = 16
LENGTH = 70
"""Two blocks and a part of a third."""
GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=NUM_TOKENS, ignore_eos=True)


def continued(model: Any, rows: Tensor, **options: Any) -> list[int]:
    """Transformers' greedy tokens after embeddings `[num_tokens, hidden_size]`; rounding changes none."""
    output = model.generate(
        inputs_embeds=rows[None],
        attention_mask=torch.ones(1, len(rows), dtype=torch.int64),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
        **options,
    )
    best = torch.stack(output.scores).topk(2, dim=-1).values
    assert (best[..., 0] - best[..., 1]).min() > 1e-4, "rounding could change a token"
    return list(output.sequences[0].tolist())


@torch.inference_mode()
def jobs_of(folder: Path) -> list[Job]:
    """One prompt as ids, as their embeddings, and as both; and embeddings that no ids have, in two dtypes."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tuple(make_prompt(LENGTH, seed=3))
    rows = model.get_input_embeddings()(torch.tensor(ids))
    drawn = torch.randn(rows.shape, generator=torch.Generator().manual_seed(5)) * rows.std()
    tokens = continued(model, rows)
    blank = (PLACEHOLDER,) * LENGTH
    mixed = blank[:40] + ids[40:50] + blank[50:]
    penalty = {"repetition_penalty": 1.3}
    params = replace(GREEDY, **penalty)
    return [
        Job(RequestSpec(request_id="ids", prompt_token_ids=ids, params=GREEDY), [tokens]),
        Job(ask("rows", blank, rows, params=replace(GREEDY, n=2)), [tokens, tokens]),
        Job(ask("both", mixed, rows[:40], rows[50:]), [tokens]),
        Job(ask("penalized", blank, drawn, params=params), [continued(model, drawn, **penalty)]),
        Job(ask("half", blank, drawn.half()), [continued(model, drawn.half().float())]),
        Job(ask("one row", blank[:1], drawn[:1]), [continued(model, drawn[:1])]),
    ]


def ask(name: str, token_ids: TokenIds, *rows: Tensor, params: SamplingParams = GREEDY) -> RequestSpec:
    """A request with embeddings at its beginning and, if there are more of them, at its end."""
    starts = (0, len(token_ids) - len(rows[-1]))
    embeds = tuple(embeds_of(one, start) for one, start in zip(rows, starts, strict=False))
    return RequestSpec(request_id=name, prompt_token_ids=token_ids, params=params, prompt_embeds=embeds)


def renamed(jobs: list[Job], how: str) -> list[Job]:
    return [replace(job, spec=replace(job.spec, request_id=f"{job.spec.request_id} {how}")) for job in jobs]


@pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")
@pytest.mark.parametrize(
    ("family", "backend"),
    [("llama", None), ("llama", "in_process"), ("gemma2", "in_process"), ("gpt2", None), ("gpt-neox", None)],
)
def test_embeddings_have_the_tokens_of_transformers(
    family: str, backend: Backend | None, tmp_path: Path
) -> None:
    """Together and split, in chunks, from the prefix cache, and after the death of a worker."""
    jobs = jobs_of(make_model(tmp_path / family, family))
    shape, victim = Shape(max_num_batched_tokens=48), "d" if backend else "m"
    with TorchCluster(tmp_path / family, backend, shape, others=(f"{victim}2",)) as cluster:
        cluster.serve_jobs(jobs)
        again = cluster.serve_jobs(renamed(jobs, "again"))
        assert sum(end.num_cached_tokens >= 64 for end in again) >= 3, "equal embeddings are not found"
        moved, outcomes = renamed(jobs, "moved"), cluster.sim.router.outcomes
        for job in moved:
            cluster.sim.router.submit(job.spec, timeout_s=600.0)
        while not any(outcomes[job.spec.request_id].tokens for job in moved):
            cluster.sim.clock.run(cluster.sim.clock.now + 0.01)
        cluster.sim.crash(victim)
        cluster.run_to_end(0.0)
        for job in moved:
            check_finished(outcomes[job.spec.request_id], job.expected)


def test_different_prompts_share_nothing(tmp_path: Path) -> None:
    """Neither with other embeddings nor with the token ids that stand in their place."""
    folder = make_model(tmp_path / "llama")
    rows = torch.randn(LENGTH, 64, generator=torch.Generator().manual_seed(0))
    params = greedy(4)
    with LLM.from_engine_args(tiny_args(folder, enable_prompt_embeds=True)) as llm:
        llm.generate([{"prompt_embeds": rows}], params)
        others: list[Any] = [{"prompt_token_ids": [PLACEHOLDER] * LENGTH}, {"prompt_embeds": rows + 0.5}]
        given = llm.generate([*others, {"prompt_embeds": rows[None], "prompt": "text"}], params)
        assert [output.num_cached_tokens for output in given] == [0, 0, 64]
        assert (given[2].prompt, given[2].prompt_token_ids) == ("text", [PLACEHOLDER] * LENGTH)
        refused: list[tuple[Any, str]] = [
            (
                {"prompt_embeds": rows[:, :63]},
                r"prompt_embeds shape is \[70, 63\]; allowed: \[1 to 511 tokens, 64\]",
            ),
            ({"prompt_embeds": rows.double()}, "prompt_embeds is 'a torch.strided of float64'"),
            ({"prompt_embeds": rows.to_sparse()}, "prompt_embeds is 'a torch.sparse_coo of float32'"),
            ({"prompt_embeds": rows * torch.nan}, "prompt_embeds is 'NaN or infinite in row 0'"),
            ({"prompt_embeds": rows, "prompt_token_ids": [1]}, "prompt_token_ids is "),
        ]
        for prompt, message in refused:
            with pytest.raises(InvalidRequestError, match=message):
                llm.generate(prompt, params)
        with pytest.raises(InvalidRequestError, match="prompt_logprobs is 0; allowed: none"):
            llm.generate({"prompt_embeds": rows}, greedy(4, prompt_logprobs=0))
    with (
        LLM.from_engine_args(tiny_args(folder)) as llm,
        pytest.raises(InvalidRequestError, match=r"prompt_embeds is 'given'; .* --enable-prompt-embeds"),
    ):
        llm.generate({"prompt_embeds": rows}, params)


def rows_of(text: str) -> Tensor:
    """The embeddings that the served model has for a text."""
    table = load_file(MODEL / "model.safetensors")["model.embed_tokens.weight"]
    return table[list(TOKENIZER.encode(text, add_special_tokens=False))]


async def test_http_takes_embeddings_as_prompts_and_as_parts_of_messages() -> None:
    limits = RequestLimits(enable_prompt_embeds=True)
    async with (
        serving(limits=limits) as server,
        working(Role.MIXED, server.grpc_port),
        client_of(server) as client,
    ):
        while (await client.get("/health")).status_code != 200:
            pass
        asked = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
        rows = rows_of(PROMPT)
        files = [encoded(torch_file(rows)), encoded(safetensors_file(prompt_embeds=rows))]

        async def texts(**body: Any) -> list[str]:
            response = await client.post("/v1/completions", json={**asked, **body})
            assert response.status_code == 200, response.text
            return [choice["text"] for choice in response.json()["choices"]]

        (plain,), (other,) = await texts(prompt=PROMPT), await texts(prompt="Once")
        assert await texts(prompt_embeds=files[0]) == [plain]
        assert await texts(prompt="Once", prompt_embeds=files) == [plain, plain, other]
        body = {**asked, "prompt_embeds": files[0], "prompt": None, "stream": True}
        chunks = chunks_of((await client.post("/v1/completions", json=body)).text)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == plain
        wrong = encoded(torch_file(rows[:, 1:].contiguous()))
        for field, given in {
            "prompt_embeds": {"prompt_embeds": "AAAA"},
            "prompt_embeds shape": {"prompt_embeds": wrong},
            "echo": {"prompt_embeds": files, "echo": True},
            "prompt_logprobs": {"prompt_embeds": files, "prompt_logprobs": 1},
            "truncate_prompt_tokens": {"prompt_embeds": files, "truncate_prompt_tokens": 1},
        }.items():
            response = await client.post("/v1/completions", json={**asked, **given})
            assert error_of(response)[:2] == (400, field)
        response = await client.post("/v1/completions", json={**asked, "prompt_embeds": ""})
        assert error_of(response)[:2] == (400, "prompt_embeds")
        response = await client.post("/v1/completions/render", json={**asked, "prompt_embeds": files[0]})
        assert error_of(response)[:2] == (400, "prompt_embeds")

        async def answer(*content: dict[str, str]) -> tuple[int, Any]:
            chat = {**asked, "messages": [{"role": "user", "content": list(content)}]}
            response = await client.post("/v1/chat/completions", json=chat)
            return response.status_code, response.json()

        question = {"type": "text", "text": "Say it."}
        words = {"type": "prompt_embeds", "data": encoded(torch_file(rows_of("Tell me")))}
        status, told = await answer({"type": "text", "text": "Tell me"}, question)
        assert status == 200
        assert (await answer(words, question))[1]["choices"] == told["choices"]
        status, error = await answer(question, {**words, "data": "AAAA"})
        assert (status, error["error"]["param"]) == (400, "messages[0].content[1].data")
