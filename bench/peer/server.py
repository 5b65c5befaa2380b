"""Servers of one engine, and clients that stream completions from them over HTTP."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any, Final

from bench.peer.engine_process import EngineProcess
from bench.peer.scenarios import FIRST_TOKEN, Scenario

MODEL_NAME: Final = "model"
POLL_S: Final = 0.05


class Client:
    """Completions of a server."""

    def __init__(self, port: int, within_s: float) -> None:
        """`within_s` is the longest silence that is waited through."""
        self.port = port
        self._within_s = within_s

    def stream(self, prompt: Sequence[int], num_tokens: int, **fields: Any) -> dict[str, Any]:
        """Return `times_s` (of the clock) and `token_ids` of a completion.

        Raises:
            OSError: nobody listens, nothing comes for too long, or the status is not 200.
        """
        times: list[float] = []
        token_ids: list[int] = []
        with closing(self._post(prompt, num_tokens, {"stream": True, **fields})) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                for choice in json.loads(line.removeprefix(b"data: "))["choices"]:
                    token_ids += choice.get("token_ids") or ()
                    times += [time.monotonic()] * (len(token_ids) - len(times))
        return {"times_s": times, "token_ids": token_ids}

    def complete(self, prompt: Sequence[int], num_tokens: int, **fields: Any) -> Any:
        """Return the whole answer; raises what `stream` does."""
        with closing(self._post(prompt, num_tokens, fields)) as answer:
            return json.load(answer)

    def _post(
        self, prompt: Sequence[int], num_tokens: int, fields: dict[str, Any]
    ) -> http.client.HTTPResponse:
        body = {"model": MODEL_NAME, "prompt": list(prompt), "max_tokens": num_tokens, "temperature": 0.0}
        body |= {"ignore_eos": True, "return_token_ids": True, **fields}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self._within_s)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
        except http.client.HTTPException as error:
            raise ConnectionError(f"no answer of HTTP: {error!r}") from error
        if answer.status != http.client.OK:
            raise ConnectionError(f"status {answer.status}: {answer.read(500)!r}")
        return answer


class PairClient:
    """Completions of two vLLM servers: the first computes prompts, the second pulls their blocks and decodes.

    Does what the example proxy of vLLM does between them, so that no proxy takes its share of the cores.
    """

    def __init__(self, prefill: Client, decode: Client) -> None:
        self._prefill = prefill
        self._decode = decode

    def stream(self, prompt: Sequence[int], num_tokens: int) -> dict[str, Any]:
        """Do what `Client.stream` does."""
        offer = {"do_remote_decode": True, "do_remote_prefill": False}
        answer = self._prefill.complete(prompt, 1, kv_transfer_params=offer)
        return self._decode.stream(prompt, num_tokens, kv_transfer_params=answer["kv_transfer_params"])


def run(client: Client | PairClient, scenario: Scenario, seed: str) -> dict[str, Any]:
    """Stream a scenario's requests; returns what `offline_engine.Engine.run` does."""

    def one(prompt: Sequence[int]) -> dict[str, Any]:
        sent = time.monotonic()
        answer = client.stream(prompt, scenario.num_output_tokens)
        return {**answer, "times_s": [at - sent for at in answer["times_s"]]}

    prompts = scenario.prompts(seed)
    with ThreadPoolExecutor(scenario.num_streams or len(prompts)) as streams:
        start = time.monotonic()
        answers = list(streams.map(one, prompts))
        wall_s = time.monotonic() - start
    return {
        "wall_s": wall_s,
        "times_s": [answer["times_s"] for answer in answers],
        "token_ids": [answer["token_ids"] for answer in answers],
    }


def wait_for_first_token(
    processes: Sequence[EngineProcess], client: Client | PairClient, within_s: float
) -> float:
    """Ask for one token until it comes; returns the seconds since the first process was started.

    Raises:
        EngineFailedError: a process has ended, or it takes too long.
    """
    (prompt,) = FIRST_TOKEN.prompts("first token")
    started_s = processes[0].started_s
    while True:
        for process in processes:
            process.check_alive()
        if time.monotonic() - started_s > within_s:
            raise processes[0].failure(f"gave no token within {within_s:g} s")
        with suppress(OSError):
            for at in client.stream(prompt, 1)["times_s"]:
                return float(at) - started_s
        time.sleep(POLL_S)
