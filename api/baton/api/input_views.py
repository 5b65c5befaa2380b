"""The parts of an engine that turn prompts into requests, under the names that vLLM's engines have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baton.api.conversations import ChatOptions, Messages, as_conversations
from baton.api.request_builder import RequestBuilder, RequestOptions
from baton.inputs import PromptType, TokensPrompt
from baton.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from baton_router.text.chat_template import Conversation


class Renderer:
    """Renders conversations with a model's chat template."""

    def __init__(self, requests: RequestBuilder, get_tokenizer: Callable[[], Any]) -> None:
        self._requests = requests
        self.get_tokenizer = get_tokenizer
        """Returns the model's tokenizer as Transformers loads it."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer as Transformers loads it."""
        return self.get_tokenizer()

    def render_messages(self, messages: Messages, **template: Any) -> TokensPrompt:
        """Return the prompt of one conversation; `template` is what `ChatOptions` has.

        Raises:
            InvalidRequestError: a message, or what the template makes of it, is out of range.
        """
        (conversation,) = as_conversations([messages], ChatOptions(**template))
        text = self._requests.tokenizer.render_chat(conversation)
        token_ids = self._requests.tokenizer.encode(text, add_special_tokens=False)
        return TokensPrompt(prompt=text, prompt_token_ids=token_ids)


class InputProcessor:
    """Checks and tokenizes requests, without submitting them."""

    def __init__(
        self, requests: RequestBuilder, renderer: Renderer, get_max_model_len: Callable[[], int]
    ) -> None:
        self._requests = requests
        self._get_max_model_len = get_max_model_len
        self.renderer = renderer

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer as Transformers loads it."""
        return self.renderer.tokenizer

    def process_inputs(
        self,
        request_id: str,
        prompt: PromptType | Conversation,
        params: SamplingParams | None = None,
        arrival_time: float | None = None,
        priority: int = 0,
    ) -> RequestSpec:
        """Return the request that an engine would get.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
        """
        options = RequestOptions(request_id=request_id, priority=priority, arrival_s=arrival_time)
        max_model_len = self._get_max_model_len()
        return self._requests.build(prompt, params, options, max_model_len=max_model_len).spec
