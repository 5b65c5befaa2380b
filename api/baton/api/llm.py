"""`LLM`: offline generation, in this process or on prefill and decode workers of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, Final, Self

from baton.api.beam_search import BeamSearchOutput
from baton.api.conversations import ChatOptions, Messages, as_conversations
from baton.api.llm_engine import LLMEngine
from baton.api.llm_operations import LLMOperations
from baton.api.llm_pooling import PoolingMethods
from baton.api.metrics import Metric
from baton.api.offline_requests import LoRARequests, OfflineRequests, Params
from baton.api.progress import UseTqdm
from baton.api.prompt_searches import search_prompts
from baton.api.prompts import as_list
from baton.api.refused import Refused, refuse_unsupported
from baton.api.turns import in_turn
from baton.config.engine_args import BUNDLED_MODEL, EngineArgs
from baton.config.vllm_config import ModelConfig
from baton.inputs import PromptType
from baton.outputs import RequestOutput
from baton.pooling_outputs import PoolingRequestOutput
from baton.sampling_params import BeamSearchParams, SamplingParams
from baton_core.errors import BatonError, InvalidRequestError
from baton_core.requests.pooling import check_runner
from baton_router.text.model_folder import read_chat_template


class LLM(LLMOperations, PoolingMethods):
    """A model to generate with.

    With `prefill_workers` and `decode_workers` it runs router and workers as processes of their own, which
    end with it; without, everything happens in the calling thread. The tokens are the same. Calls from
    several threads take turns.

    Args:
        model: a folder or a Hugging Face id.
        chat_template: Jinja source, or a file of it, for conversations that give none.
        engine_args: fields of `EngineArgs`.

    Raises:
        InvalidModelError: the model cannot be loaded.
        InvalidConfigError: a setting cannot hold.
        TypeError: a name is unknown.
    """

    engine_class: Final = LLMEngine

    def __init__(
        self, model: str = BUNDLED_MODEL, *, chat_template: Path | str | None = None, **engine_args: Any
    ) -> None:
        self._start(EngineArgs(model=model, **engine_args), chat_template)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Make one of all arguments at once."""
        llm = cls.__new__(cls)
        llm._start(engine_args)
        return llm

    def _start(self, engine_args: EngineArgs, chat_template: Path | str | None = None) -> None:
        self._turn = RLock()
        self.chat_template: str | None = None
        """Jinja source for calls that give none; None is the model's own."""
        if chat_template:
            self.chat_template = read_chat_template(str(chat_template), "chat_template")
        self._name = engine_args.model_names[0]
        self.llm_engine = LLMEngine(engine_args)
        self._offline = OfflineRequests(self.llm_engine)
        self.request_counter = self.llm_engine.requests.counter
        self.renderer = self.llm_engine.renderer
        self.input_processor = self.llm_engine.input_processor
        self._weights = self.llm_engine.weights

    def __repr__(self) -> str:
        """Return the parts of the model, as torch prints modules; only its name while it sleeps."""
        try:
            return str(self.apply_model("builtins:repr")[0])
        except BatonError:
            return f"LLM(model={self._name!r}, max_model_len={self.llm_engine.max_model_len})"

    # --- generation ---

    @in_turn
    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: Params | None = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: LoRARequests = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: None = None,
    ) -> list[RequestOutput]:
        """Complete the prompts: text, token ids, `TextPrompt` or `TokensPrompt`, one or many.

        Args:
            sampling_params: for all prompts, or one for each; None takes the model's defaults.
            use_tqdm: show a bar; a function makes the bar in the place of `tqdm`.
            lora_request: the adapter for all prompts, or one, or None, for each.
            priority: one for each prompt, lower values first, under the scheduling policy `priority`; under
                another it counts for nothing.
            tokenization_kwargs: the fields of `TokenizationOptions`, by name.

        Returns:
            One output per prompt, in their order.

        Raises:
            InvalidRequestError: a prompt or parameter is out of range; nothing was generated.
            RequestError: a request failed, or the engine sleeps.
        """
        self.llm_engine.require_awake()
        names = self.enqueue(
            prompts,
            sampling_params,
            lora_request,
            priority,
            use_tqdm=False,
            tokenization_kwargs=tokenization_kwargs,
            mm_processor_kwargs=mm_processor_kwargs,
        )
        return self._offline.wait(names, use_tqdm)

    @in_turn
    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: Params | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: LoRARequests = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: None = None,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations, one or many, each a list of messages with `role` and `content`.

        The options of the template are those of `ChatOptions`.

        Raises:
            InvalidRequestError: a message or a parameter is out of range; nothing was generated.
            RequestError: a request failed, or the engine sleeps.
        """
        self.llm_engine.require_awake()
        names = self.enqueue_chat(
            messages,
            sampling_params,
            False,
            lora_request,
            priority,
            chat_template,
            chat_template_content_format,
            add_generation_prompt,
            continue_final_message,
            tools,
            chat_template_kwargs,
            tokenization_kwargs,
            mm_processor_kwargs,
        )
        return self._offline.wait(names, use_tqdm)

    @in_turn
    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        lora_request: LoRARequests = None,
        use_tqdm: UseTqdm = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Find the `beam_width` most likely completions of each prompt, the best first.

        Args:
            lora_request: the adapter for all prompts, or one, or None, for each.
            concurrency_limit: how many prompts are searched at a time; None is all.

        Raises:
            InvalidRequestError: a prompt or a parameter is out of range.
            RequestError: a request failed, or the engine sleeps.
        """
        check_runner(self.llm_engine.pooling, None)
        return search_prompts(
            self.llm_engine,
            as_list(prompts),
            params,
            partial(self.generate, use_tqdm=False),
            lora_request=lora_request,
            use_tqdm=use_tqdm,
            concurrency_limit=concurrency_limit,
        )

    @in_turn
    def enqueue(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: Params | None = None,
        lora_request: LoRARequests = None,
        priority: Sequence[int] | None = None,
        use_tqdm: UseTqdm = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: None = None,
    ) -> list[str]:
        """Take prompts as `generate` does, without waiting; returns their requests' ids.

        Raises:
            InvalidRequestError: a prompt or parameter is out of range; nothing was taken.
            RequestError: UNAVAILABLE, the engine sleeps at level 1 or 2.
        """
        refuse_unsupported(mm_processor_kwargs=mm_processor_kwargs)
        check_runner(self.llm_engine.pooling, None)
        given = as_list(prompts)
        return self._offline.enqueue(
            given, sampling_params, priority, tokenization_kwargs, use_tqdm, lora_request
        )

    @in_turn
    def enqueue_chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: Params | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: LoRARequests = None,
        priority: Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: None = None,
    ) -> list[str]:
        """Take conversations as `chat` does, without waiting; returns their requests' ids.

        Raises:
            InvalidRequestError: a message or a parameter is out of range; nothing was taken.
            RequestError: UNAVAILABLE, the engine sleeps at level 1 or 2.
        """
        refuse_unsupported(mm_processor_kwargs=mm_processor_kwargs)
        check_runner(self.llm_engine.pooling, None)
        options = ChatOptions(
            chat_template=chat_template or self.chat_template,
            chat_template_content_format=chat_template_content_format,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )
        given = as_conversations(messages, options)
        return self._offline.enqueue(
            given, sampling_params, priority, tokenization_kwargs, use_tqdm, lora_request
        )

    @in_turn
    def wait_for_completion(
        self, output_type: type | tuple[type, ...] | None = None, *, use_tqdm: UseTqdm = True
    ) -> list[Any]:
        """Finish everything that is open; returns the outputs, first of what was enqueued, in that order.

        Raises:
            InvalidRequestError: `output_type` is none that requests have here.
            RequestError: a request failed, or the engine sleeps.
        """
        own: type = RequestOutput if self.llm_engine.pooling is None else PoolingRequestOutput
        types = output_type if isinstance(output_type, tuple) else (output_type or own,)
        if own not in types:
            raise InvalidRequestError("output_type", output_type, f"{own.__name__}, as this model gives")
        self.llm_engine.require_awake()
        return self._offline.wait(self._offline.unfinished, use_tqdm)

    # --- what is known of the model ---

    @property
    def runner_type(self) -> str:
        """The kind of the model: `generate` or `pooling`."""
        return self.model_config.runner_type

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        return self.model_config.supported_tasks

    @property
    def model_config(self) -> ModelConfig:
        return self.llm_engine.model_config

    @property
    def default_sampling_params(self) -> dict[str, Any]:
        """The model's sampling defaults that are not Baton's own."""
        return self.model_config.get_diff_sampling_param()

    def get_world_size(self, include_dp: bool = True) -> int:
        """Return the number of workers, or without `include_dp` of those that compute one model together."""
        parallel = self.llm_engine.vllm_config.parallel_config
        return parallel.world_size_across_dp if include_dp else parallel.world_size

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of calls that give none: the model's generation_config, or what overrides it."""
        return self.llm_engine.requests.default_params

    def get_tokenizer(self) -> Any:
        """The model's tokenizer as Transformers loads it.

        Raises:
            InvalidConfigError: Transformers is not installed, or cannot load it.
        """
        return self.llm_engine.get_tokenizer()

    def get_metrics(self) -> list[Metric]:
        """Figures of all requests so far, under vLLM's names, also while another thread's call runs."""
        return self.llm_engine.get_metrics()

    # --- updates of the weights ---

    def init_weight_transfer_engine(self, request: object) -> None:
        """Agree on the way of new weights; it may be left out.

        Args:
            request: an object with `init_info`: empty, or `{"backend": "files"}`.

        Raises:
            InvalidRequestError: another backend is asked for, such as NCCL or IPC.
        """
        self._weights.init(request)

    @in_turn
    def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        """Begin an update: `update_weights` and `finish_weight_update` follow.

        Raises:
            InvalidRequestError: the weights are not to come under the names and shapes of the checkpoint.
        """
        self.llm_engine.control_each(self._weights.start(is_checkpoint_format=is_checkpoint_format))

    @in_turn
    def update_weights(self, request: object) -> None:
        """Give new weights, which nothing computes with yet.

        Args:
            request: an object with `update_info`: `{"path": folder}` of safetensors files, or `{"tensors":
                tensors by name}`, which may come in several calls.

        Raises:
            InvalidRequestError: `update_info` is none of these, or no update was begun.
            InvalidModelError: a tensor of the folder is missing, has another shape or is not finite.
        """
        self.llm_engine.control_each(self._weights.update(request))

    @in_turn
    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Finish what is enqueued with the old weights; from then on the new ones compute. Caches are empty.

        Args:
            weight_version: the new version's name, for `get_weight_version`.

        Raises:
            InvalidModelError: a tensor is missing, has another shape or is not finite: the old ones stay.
            RequestError: INVALID_REQUEST, there are no new weights; UNAVAILABLE, the engine sleeps.
        """
        self.llm_engine.control_each(self._weights.finish(weight_version))

    def get_weight_version(self) -> str:
        """Return the name that the version of the weights was given last; at first it is `default`."""
        return self._weights.version

    def update_weight_version(self, new_version: str) -> None:
        """Give the version of the weights another name."""
        self._weights.version = new_version

    def shutdown_weight_transfer_engine(self) -> None:
        """Do nothing: weights come by files and tensors, so there is no connection to a trainer."""

    start_draft_weight_update = Refused("the weights of a draft model stay those that it was loaded with")
