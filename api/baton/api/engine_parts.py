"""The parts that every engine makes of its `EngineArgs`; models are read as a router reads them."""

from __future__ import annotations

from pathlib import Path

from baton.api.request_builder import RequestBuilder
from baton.config.engine_args import EngineArgs
from baton.config.environment import max_n_sequences
from baton.config.processor_names import applied_names
from baton_engine.sampling.logits_processors import LogitsProcessors
from baton_router.output_parsing.reasoning import markers_of
from baton_router.output_parsing.registry import find_reasoning_parser, load_plugin
from baton_router.requests.request_limits import RequestLimits
from baton_router.text.generation_defaults import with_generation_config
from baton_router.text.model_folder import ModelFolder, read_model_folder
from baton_router.text.tokenization import Tokenizer


def read_model(args: EngineArgs) -> ModelFolder:
    """Read what callers and routers know of a model; its folders are local.

    Raises:
        InvalidModelError: a file is missing or broken.
        InvalidConfigError: the generation_config cannot hold.
    """
    tokenizer = None if args.tokenizer is None else Path(args.tokenizer)
    model = read_model_folder(Path(args.model), tokenizer, args.hf_overrides)
    return with_generation_config(model, args.generation_config, args.override_generation_config)


def request_builder(args: EngineArgs, model: ModelFolder) -> RequestBuilder:
    """A builder that reads the requests of an engine as a router with these arguments would.

    Raises:
        InvalidModelError: the tokenizer is broken.
        InvalidConfigError: no reasoning parser has the name, or the plug-in fails; or a logits processor
            cannot be used.
    """
    reasoning = None
    if args.reasoning_parser_plugin:
        load_plugin(args.reasoning_parser_plugin, "reasoning_parser_plugin")
    if args.reasoning_parser:
        reasoning = markers_of(find_reasoning_parser(args.reasoning_parser))
    limits = RequestLimits(
        max_logprobs=args.max_logprobs,
        max_n_sequences=max_n_sequences(),
        stream_interval=args.stream_interval,
        logits_processors=tuple(map(str, args.logits_processors)),
        reasoning=reasoning,
        trust_request_chat_template=True,
        structured_outputs_backend=args.structured_outputs_backend,
        enable_prompt_embeds=args.enable_prompt_embeds,
        is_in_process=not args.is_disaggregated,
    )
    processors = None  # workers of other processes check what theirs take
    if not args.is_disaggregated:
        processors = LogitsProcessors.load(applied_names(args.logits_processors))
    return RequestBuilder(
        model,
        Tokenizer(model),
        limits,
        processors=processors,
        seed=args.seed,
        takes_text=not args.skip_tokenizer_init,
        max_lora_rank=args.max_lora_rank if args.enable_lora else None,
    )
