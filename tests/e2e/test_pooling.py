"""A served model that pools: the clients that ask for embeddings, lost workers, fuzzed bodies."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, Final

import cohere
import httpx
import openai
import pytest
from transformers import BertConfig, BertModel

from baton import LLM, EngineArgs
from tests.e2e.documented import Documented
from tests.e2e.fuzzed_calls import Fuzz
from tests.e2e.hostile_client import send
from tests.e2e.processes import FLOAT32, Cluster, children_of, serving, until
from tests.pooling import make_pooling_model

KEY: Final = "a-key"
TEXTS: Final = ("What is os.path?", "The json module reads and writes JSON.", "A list holds items in order.")
FLAGS: Final = (
    *("--prefill-workers", "2", "--decode-workers", "0", "--runner", "pooling", "--api-key", KEY),
    *("--served-model-name", "small-bert", "--files-directory", "files"),
)
WITHIN_S: Final = 30.0
NUM_FUZZED: Final = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "bert"
    make_pooling_model(path, BertConfig, BertModel)
    return path


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[float]]:
    """The embeddings of one process without workers."""
    args = EngineArgs(str(folder), dtype="float32", batch_invariant=True)
    outputs = LLM.from_engine_args(args).embed(list(TEXTS), use_tqdm=False)
    return [one.outputs.embedding for one in outputs]


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two prefill workers, and nothing that decodes."""
    flags = (str(folder), *FLOAT32, *FLAGS, "--batch-invariant")
    with serving(tmp_path_factory.mktemp("pooling") / "cluster", *flags) as cluster:
        yield cluster


def test_refusals_name_the_field_of_the_route(served: Cluster) -> None:
    long, pair = "word " * 5000, {"text_1": ["a", "b"], "text_2": "c"}
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("/score", pair, "text_1 is '2 texts'; allowed: one text, or as many as text_2 has, 1"),
        ("/score", {"queries": "a", "items": []}, "items is []"),
        ("/rerank", {"query": long, "documents": ["a"]}, "query is "),
        ("/rerank", {"query": "a", "documents": ["a", long]}, "documents[1] is "),
        ("/v2/embed", {"texts": []}, "texts is []; allowed: at least one text"),
        ("/v2/embed", {"texts": [long], "truncate": "NONE"}, "texts is "),
        ("/v2/embed", {"texts": ["word"], "truncate": "NONE", "max_tokens": 1}, "texts is "),
        ("/v2/embed", {"texts": ["a"], "max_tokens": 0}, "max_tokens is 0; allowed: -1, or 1 to "),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 9}, "output_dimension is 9; allowed: 64: "),
        ("/v1/embeddings", {"input": long}, "input is "),
        ("/v1/embeddings", {"input": ["a", []]}, "input[1] is '0 tokens'"),
        ("/v1/embeddings", {"input": ["a", 1]}, "input[1] is 'items of several kinds'"),
        ("/v1/embeddings", {"input": [1, "a"]}, "input is 'items of several kinds'"),
        ("/v1/embeddings", {"messages": [said_by("user", long)]}, "messages is "),
        ("/v1/embeddings", {"messages": [[said_by("user")], [said_by("user", long)]]}, "messages[1] is "),
        ("/v1/embeddings", {"messages": [[said_by("user")], [image]]}, "messages[1][0].content[0].type is "),
        ("/v1/embeddings", {"input": [image]}, "input[0].content[0].type is "),
        ("/v1/embeddings", {"messages": [image]}, "messages[0].content[0].type is "),
        ("/v1/embeddings", {"messages": [[said_by("user")], said_by("user")]}, "messages[1] is 'items of "),
    ]
    with httpx.Client(
        base_url=f"http://{served.http_address}", headers={"Authorization": f"Bearer {KEY}"}
    ) as client:
        for path, body, said in refused:
            reply = client.post(path, json=body)
            assert reply.status_code == 400, (path, reply.text)
            message = reply.json().get("message") or reply.json()["error"]["message"]
            assert message.startswith(said), message


def said_by(role: str, content: str = "a") -> dict[str, str]:
    return {"role": role, "content": content}


def test_conversations_embed_one_or_many_at_a_time(served: Cluster) -> None:
    chats = [[said_by("user", TEXTS[0])], [said_by("user", TEXTS[1]), said_by("assistant", TEXTS[2])]]
    with httpx.Client(
        base_url=f"http://{served.http_address}", headers={"Authorization": f"Bearer {KEY}"}
    ) as client:

        def embedded(**body: Any) -> list[list[float]]:
            reply = client.post("/v1/embeddings", json=body)
            assert reply.status_code == 200, reply.text
            return [one["embedding"] for one in reply.json()["data"]]

        each = [*embedded(messages=chats[0]), *embedded(messages=chats[1])]
        assert each[0] != each[1]
        assert embedded(messages=chats) == embedded(input=chats) == each
        assert embedded(input=chats[1]) == each[1:]
        assert embedded(input=[TEXTS[0], chats[0]])[1] == each[0]
        one = client.post("/rerank", json={"query": "a", "documents": TEXTS[0]}).json()
        assert [item["document"]["text"] for item in one["results"]] == [TEXTS[0]]


def test_openai_and_langchain_get_the_embeddings_of_one_process(
    served: Cluster, expected: list[list[float]]
) -> None:
    from langchain_openai import OpenAIEmbeddings  # seconds that every process of the suite would take

    url = f"http://{served.http_address}/v1"
    with openai.OpenAI(base_url=url, api_key=KEY) as client:
        # By itself the client asks for base64. AnythingLLM's embedder sends lists of up to 500 texts.
        many = client.embeddings.create(model="small-bert", input=list(TEXTS) * 100)
        assert [one.embedding for one in many.data] == expected * 100
        assert [one.index for one in many.data] == list(range(300))
        (one,) = client.embeddings.create(model="small-bert", input=TEXTS[0], encoding_format="float").data
        assert one.embedding == expected[0]
        with pytest.raises(openai.BadRequestError, match="dimensions is 8; allowed: 64: "):
            client.embeddings.create(model="small-bert", input="a", dimensions=8)
        with pytest.raises(openai.BadRequestError, match="a model that generates; this one has embed"):
            client.completions.create(model="small-bert", prompt="a")
    options: dict[str, Any] = {"base_url": url, "api_key": KEY, "check_embedding_ctx_length": False}
    with httpx.Client() as http_client:
        embeddings = OpenAIEmbeddings(model="small-bert", http_client=http_client, **options)
        assert embeddings.embed_documents(list(TEXTS)) == expected
        assert embeddings.embed_query(TEXTS[1]) == expected[1]


def test_a_batch_embeds(served: Cluster, expected: list[list[float]]) -> None:
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/embeddings", "body": {"input": text}}
        for number, text in enumerate(TEXTS)
    ]
    with openai.OpenAI(base_url=f"http://{served.http_address}/v1", api_key=KEY) as client:
        file = client.files.create(file="\n".join(map(json.dumps, lines)).encode(), purpose="batch")
        made = client.batches.create(
            input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
        )
        until(lambda: client.batches.retrieve(made.id).status == "completed", WITHIN_S, "the batch is over")
        name = client.batches.retrieve(made.id).output_file_id
        answers = [json.loads(one) for one in client.files.content(str(name)).iter_lines()]
    embedded = {one["custom_id"]: one["response"]["body"]["data"][0]["embedding"] for one in answers}
    assert embedded == {str(number): one for number, one in enumerate(expected)}


def test_cohere_embeds_and_ranks(served: Cluster, expected: list[list[float]]) -> None:
    address = f"http://{served.http_address}"
    with httpx.Client() as http_client:
        options: dict[str, Any] = {"api_key": KEY, "base_url": address, "httpx_client": http_client}
        client = cohere.ClientV2(**options)
        embedded = client.embed(
            model="small-bert",
            texts=list(TEXTS),
            input_type="search_document",
            embedding_types=["float", "ubinary"],
        )
        ranked = client.rerank(model="small-bert", query=TEXTS[2], documents=list(TEXTS), top_n=2)
        without: dict[str, Any] = {"query": TEXTS[2], "documents": list(TEXTS), "return_documents": False}
        older = cohere.Client(**options).rerank(**without)
        bare = http_client.post(f"{address}/rerank", json=without, headers={"x-api-key": KEY}).json()
    assert embedded.embeddings.float_ == expected
    bits = [sum((value > 0) << (7 - place) for place, value in enumerate(one[:8])) for one in expected]
    assert embedded.embeddings.ubinary is not None
    assert [one[0] for one in embedded.embeddings.ubinary] == bits
    assert [one.index for one in ranked.results][:1] == [2]
    assert len(ranked.results) == 2
    assert ranked.meta is not None
    assert ranked.meta.api_version is not None
    assert ranked.meta.api_version.version == "2"
    assert ranked.results[0].relevance_score == pytest.approx(1.0)
    assert sorted(one.index for one in older.results) == [0, 1, 2]
    assert {frozenset(one) for one in bare["results"]} == {frozenset({"index", "relevance_score"})}


def test_every_answer_is_the_same_when_a_worker_dies(served: Cluster, expected: list[list[float]]) -> None:
    url, headers = f"http://{served.http_address}/v1/embeddings", {"authorization": f"Bearer {KEY}"}

    def embed(number: int) -> bool:
        body = {"input": TEXTS[number % len(TEXTS)]}
        answer = httpx.post(url, json=body, headers=headers, timeout=WITHIN_S)
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["data"][0]["embedding"] == expected[number % len(TEXTS)])

    workers = [pid for pid, title in children_of(served.process.pid).items() if "prefill-worker" in title]
    assert len(workers) == 2
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(embed, number) for number in range(120)]
        until(lambda: sum(one.done() for one in answers) > 20, WITHIN_S, "answers")
        os.kill(workers[0], signal.SIGKILL)
        assert all(one.result(WITHIN_S) for one in answers)
    until(lambda: len(served.info().workers) == 2, 60.0, "the worker is back")
    served.wait_until_idle()


def test_anything_else_is_answered_as_documented(served: Cluster) -> None:
    documented = Documented(served.http_address, WITHIN_S, (("authorization", f"Bearer {KEY}"),))
    paths = documented.document["paths"]
    others = tuple(
        path
        for path, methods in paths.items()
        if not any("Pooling" in operation.get("tags", ()) for operation in methods.values())
    )
    fuzz, random, statuses = Fuzz(documented.document, avoided=others), Random(0), set()
    for _ in range(NUM_FUZZED):
        call = fuzz.draw(random, only_with_body=True)
        call = call.with_header("authorization", f"Bearer {KEY}")
        if (answer := send(served.http_address, call, WITHIN_S)) is not None:
            documented.check(call, answer)
            statuses.add(answer.status)
    assert {200, 400} <= statuses
    served.wait_until_idle()
    assert "Traceback" not in served.log.read_text()
