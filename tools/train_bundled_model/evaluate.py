"""Perplexity of a model folder on the held-out documents, and sample answers and completions.

Usage: python evaluate.py --docs /usr/share/doc/python3.11/html --model ../../api/baton/bundled
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

QUESTIONS = (
    "What does os.path.join do?",
    "What is the json module?",
    "How do I use sorted?",
    "What is collections.deque?",
    "When is KeyError raised?",
    "Hello",
)
PROMPTS = ("The os module", "Return a list of", "import json\n", "If the file does not exist,")


class Score(NamedTuple):
    """A model's score of a text."""

    tokens: int
    text_bytes: int
    nats: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats / self.tokens)

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.text_bytes


@torch.inference_mode()
def score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    window: int = 1024,
    most_windows: int | None = None,
) -> Score:
    """Sums the loss over windows of the texts; a window's first token is predicted from <|endoftext|>."""
    tokens, text_bytes, nats, windows = 0, 0, 0.0, 0
    start = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    for text in texts:
        ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        for begin in range(0, len(ids), window):
            if most_windows is not None and windows == most_windows:
                return Score(tokens, text_bytes, nats)
            target = torch.tensor(ids[begin : begin + window])
            given = torch.cat([torch.tensor([start]), target[:-1]])
            logits = model(input_ids=given[None], use_cache=False).logits[0].float()
            nats += functional.cross_entropy(logits, target, reduction="sum").item()
            tokens += len(target)
            text_bytes += len(tokenizer.decode(target, clean_up_tokenization_spaces=False).encode())
            windows += 1
    return Score(tokens, text_bytes, nats)


@torch.inference_mode()
def greedy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, most: int = 120) -> str:
    """Return a prompt's greedy continuation by the model."""
    given = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
    out = model.generate(**given, max_new_tokens=most, do_sample=False)
    return tokenizer.decode(out[0, given["input_ids"].shape[1] :], skip_special_tokens=True)


def answer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, question: str) -> str:
    """The greedy answer to one question, put through the chat template."""
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return greedy(model, tokenizer, prompt)


def main() -> None:
    """Prints the perplexity and the samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--docs", type=Path, help="folder of Python's HTML documentation; without it no perplexity"
    )
    parser.add_argument("--model", type=Path, required=True, help="the model's folder")
    parser.add_argument(
        "--question", action="append", help="a question to answer; may be given more than once"
    )
    flags = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(flags.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(flags.model)
    if flags.docs:
        from corpus import build

        held_out = score(model, tokenizer, build(flags.docs).held_out.values())
        print(
            f"held out: {held_out.tokens:,} tokens, {held_out.text_bytes:,} bytes, "
            f"perplexity {held_out.perplexity:.2f}, {held_out.bits_per_byte:.3f} bits per byte"
        )
    for question in flags.question or QUESTIONS:
        print(f"\n> {question}\n{answer(model, tokenizer, question)}")
    for prompt in () if flags.question else PROMPTS:
        print(f"\n| {prompt}[...]{greedy(model, tokenizer, prompt, 60)}")


if __name__ == "__main__":
    main()
