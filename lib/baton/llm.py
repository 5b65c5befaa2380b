"""`LLM`: offline generation, in this process or on prefill and decode workers of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Protocol, Self, TypedDict, cast

from tqdm import tqdm

from baton.cli_arguments import BUNDLED_MODEL
from baton.in_process import InProcessCluster
from baton.outputs import CompletionOutput, RequestOutput
from baton.spawned import SpawnedCluster
from baton.worker_process import WorkerSettings
from baton_core.errors import InvalidRequestError
from baton_core.router_messages import RequestSpec
from baton_core.sampling_params import SamplingParams
from baton_core.scheduler_config import SchedulerConfig, parse_policy
from baton_core.worker_info import Role
from baton_engine.loading import EngineSettings
from baton_engine.sizing import KVCacheSettings
from baton_proto.v1 import baton_pb2 as pb
from baton_router.model_folder import find_model_folder, read_model_folder
from baton_router.tokenization import Tokenizer
from baton_router.validation import check_prompt, check_token_ids

_SEED_BITS = 63


class TextPrompt(TypedDict):
    """A prompt of text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt of token ids."""

    prompt_token_ids: Sequence[int]


Event = pb.TokensEvent | pb.FinishedEvent
Prompt = str | Sequence[int] | TextPrompt | TokensPrompt


class Cluster(Protocol):
    """What `LLM` generates with."""

    max_model_len: int

    def generate(self, specs: Sequence[RequestSpec]) -> Iterator[tuple[str, Event]]:
        """Yield each request's events, under its id: any number of tokens, then its end.

        Raises:
            RequestError: a request failed; the others are cancelled.
        """
        ...

    def close(self) -> None: ...


class LLM:
    """A model to generate with.

    With `prefill_workers` and `decode_workers` it runs router and workers as processes of their own, which
    end with it; without, everything happens in the calling thread, on the CPU. The tokens are the same.

    Raises:
        InvalidModelError: the model cannot be loaded.
        InvalidConfigError: a setting cannot hold.
    """

    def __init__(
        self,
        model: str = BUNDLED_MODEL,
        *,
        dtype: str = "auto",
        seed: int = 0,
        max_model_len: int | None = None,
        max_num_seqs: int = 128,
        max_num_batched_tokens: int = 2048,
        scheduling_policy: str = "fcfs",
        max_num_partial_prefills: int = 1,
        max_long_partial_prefills: int = 1,
        long_prefill_token_threshold: int = 0,
        prefill_workers: int = 0,
        decode_workers: int = 0,
    ) -> None:
        self.model = model
        self._folder = read_model_folder(find_model_folder(model))
        self._tokenizer = Tokenizer(self._folder)
        self._random = Random(seed)
        self._num_requests = 0
        kv_cache = KVCacheSettings(max_model_len=max_model_len, max_num_batched_tokens=max_num_batched_tokens)
        scheduler = SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            policy=parse_policy(scheduling_policy),
            max_num_partial_prefills=max_num_partial_prefills,
            max_long_partial_prefills=max_long_partial_prefills,
            long_prefill_token_threshold=long_prefill_token_threshold,
        )
        settings = WorkerSettings(
            role=Role.MIXED,
            engine=EngineSettings(model=model, dtype=dtype, kv_cache=kv_cache),
            routers=("in-process",),
            scheduler=scheduler,
        )
        self._cluster: Cluster
        if prefill_workers or decode_workers:
            self._cluster = SpawnedCluster(settings, prefill_workers, decode_workers)
        else:
            self._cluster = InProcessCluster(settings, self._tokenizer)

    def __repr__(self) -> str:
        return f"LLM(model={self.model!r}, max_model_len={self._cluster.max_model_len})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; it cannot generate afterwards."""
        self._cluster.close()

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's own generation_config says."""
        return self._folder.sampling_defaults

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete the prompts: text, token ids, `TextPrompt` or `TokensPrompt`, one or many.

        Args:
            sampling_params: for all prompts, or one for each; None takes the model's defaults.
            priority: one for each prompt, lower values first, under the scheduling policy `priority`.

        Returns:
            One output per prompt, in their order.

        Raises:
            InvalidRequestError: a prompt or parameter is out of range; nothing was generated.
            RequestError: a request failed.
        """
        given = _as_list(prompts)
        params = self._params_of(len(given), sampling_params)
        priorities = [0] * len(given) if priority is None else priority
        if len(priorities) != len(given):
            raise InvalidRequestError("priority", f"{len(priorities)} of them", str(len(given)))
        for value in priorities:
            if not isinstance(value, int) or not -(2**31) <= value < 2**31:
                raise InvalidRequestError("priority", value, f"integers from {-(2**31)} to {2**31 - 1}")
        builders: dict[str, _OutputBuilder] = {}
        for prompt, prompt_params, prompt_priority in zip(given, params, priorities, strict=True):
            builder = self._builder(prompt, prompt_params, prompt_priority)
            builders[builder.spec.request_id] = builder
        # In order of priority: a cluster takes a part of them at a time.
        specs = sorted((builder.spec for builder in builders.values()), key=lambda spec: spec.priority)
        with tqdm(total=len(specs), desc="prompts", disable=not use_tqdm, dynamic_ncols=True) as bar:
            num_tokens = 0
            for request_id, event in self._cluster.generate(specs):
                num_tokens += builders[request_id].take(event)
                if isinstance(event, pb.FinishedEvent):
                    bar.set_postfix_str(f"{num_tokens / max(bar.format_dict['elapsed'], 1e-9):.1f} tokens/s")
                    bar.update()
        return [builder.build() for builder in builders.values()]

    def _params_of(
        self, num_prompts: int, given: SamplingParams | Sequence[SamplingParams] | None
    ) -> Sequence[SamplingParams]:
        if given is None or isinstance(given, SamplingParams):
            return [given or self.get_default_sampling_params()] * num_prompts
        if len(given) != num_prompts:
            raise InvalidRequestError("sampling_params", f"{len(given)} of them", f"1 or {num_prompts}")
        return given

    def _builder(self, prompt: Prompt, params: SamplingParams, priority: int) -> _OutputBuilder:
        text = _text_of(prompt)
        token_ids = self._tokenizer.encode(text) if text is not None else _token_ids_of(prompt)
        vocab_size = self._folder.vocab_size
        check_prompt(token_ids, max_model_len=self._cluster.max_model_len, vocab_size=vocab_size)
        check_token_ids("stop_token_ids", params.stop_token_ids, vocab_size)
        if params.seed is None:
            params = replace(params, seed=self._random.getrandbits(_SEED_BITS))
        self._num_requests += 1
        spec = RequestSpec(
            request_id=f"llm-{self._num_requests}",
            prompt_token_ids=token_ids,
            params=params,
            priority=priority,
        )
        return _OutputBuilder(text, spec)


class _OutputBuilder:
    """Collects the events of one request."""

    def __init__(self, prompt: str | None, spec: RequestSpec) -> None:
        self.spec = spec
        self._prompt = prompt
        self._ends: dict[int, pb.TokensEvent] = {}
        self._texts: list[list[str]] = [[] for _ in range(spec.params.n)]
        self._token_ids: list[list[int]] = [[] for _ in range(spec.params.n)]
        self._num_cached_tokens = 0

    def take(self, event: Event) -> int:
        """Add an event; returns how many tokens it brought."""
        if isinstance(event, pb.FinishedEvent):
            self._num_cached_tokens = event.usage.cached_tokens
            return 0
        self._texts[event.index].append(event.text)
        self._token_ids[event.index].extend(event.token_ids)
        if event.finish_reason:
            self._ends[event.index] = event
        return len(event.token_ids)

    def build(self) -> RequestOutput:
        return RequestOutput(
            request_id=self.spec.request_id,
            prompt=self._prompt,
            prompt_token_ids=self.spec.prompt_token_ids,
            outputs=tuple(self._completion(index) for index in range(self.spec.params.n)),
            num_cached_tokens=self._num_cached_tokens,
        )

    def _completion(self, index: int) -> CompletionOutput:
        end = self._ends[index]
        which = end.WhichOneof("stop_reason")
        return CompletionOutput(
            index=index,
            text="".join(self._texts[index]),
            token_ids=tuple(self._token_ids[index]),
            finish_reason=end.finish_reason,
            stop_reason=getattr(end, which) if which else None,
        )


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many: a list of token ids is one."""
    is_one = isinstance(prompts, str | Mapping) or (bool(prompts) and isinstance(prompts[0], int))
    return [cast(Prompt, prompts)] if is_one else list(cast(Sequence[Prompt], prompts))


def _text_of(prompt: Prompt) -> str | None:
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    if not isinstance(text, str):
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("prompt", text, "text that UTF-8 can hold") from None
    return text


def _token_ids_of(prompt: Prompt) -> tuple[int, ...]:
    token_ids = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else prompt
    if not isinstance(token_ids, Sequence) or not all(isinstance(token_id, int) for token_id in token_ids):
        allowed = "text, token ids, or a dictionary with `prompt` or `prompt_token_ids`"
        raise InvalidRequestError("prompt", prompt, allowed)
    return tuple(token_ids)
