"""Trains a model of one layer that drafts for the bundled model, in the time given, and writes its folder.

It learns the bundled model's own answers: a part of the time goes into having Baton generate them, to
questions about names of the standard library and behind the beginnings of docstrings. One name in ten is held
out. The embedding begins as that of the bundled model, and the draft learns its probabilities of every token.
The folder has configuration and weights alone: a draft model needs no tokenizer.

Usage: python train_draft.py --target ../../api/baton/bundled --out ../../bench/bundled_draft --minutes 20
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import random
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from questions import FUNCTION_QUESTIONS, MODULE_QUESTIONS, USE_QUESTIONS
from torch import Tensor
from torch.nn import functional
from train import rate
from transformers import LlamaConfig, LlamaForCausalLM

from baton import LLM, SamplingParams

HELD_OUT_ONE_IN = 10
ROWS, LENGTH = 16, 128
ANSWER_TOKENS = 112
LEFT_OUT_MODULES = {"antigravity", "this", "idlelib", "turtledemo", "lib2to3", "test"}


def documented_names() -> Iterator[tuple[str, str]]:
    """Yield the public names of the standard library with the first part of their docstrings."""
    for module_name in sorted(sys.stdlib_module_names - LEFT_OUT_MODULES):
        if module_name.startswith("_"):
            continue
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue
        for name, value in sorted(vars(module).items()):
            text = inspect.getdoc(value) if not name.startswith("_") and callable(value) else None
            if text:
                yield f"{module_name}.{name}", text
        yield module_name, inspect.getdoc(module) or ""


def is_held_out(name: str) -> bool:
    """Say whether nothing about a name is trained."""
    return zlib.crc32(name.encode()) % HELD_OUT_ONE_IN == 0


def prompts(chance: random.Random) -> list[tuple[str, bool]]:
    """Return questions about the names, and beginnings of docstrings; True where it is a question."""
    found: list[tuple[str, bool]] = []
    for name, text in documented_names():
        if is_held_out(name):
            continue
        asked = MODULE_QUESTIONS if "." not in name else (*FUNCTION_QUESTIONS, *USE_QUESTIONS)
        found += [(question.format(name), True) for question in chance.sample(asked, 2)]
        if len(text) > 80:
            found.append((text[: chance.randint(20, 160)], False))
    chance.shuffle(found)
    return found


def generate(target: Path, seconds: float, chance: random.Random) -> list[list[int]]:
    """Have the bundled model write for so long; returns texts with their prompts, token by token."""
    texts: list[list[int]] = []
    with LLM(str(target), dtype="float32") as llm:
        tokenizer = llm.get_tokenizer()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for start in range(0, len(asked := prompts(chance)), 256):
                if time.monotonic() >= until:
                    break
                part = asked[start : start + 256]
                chats = [
                    tokenizer.apply_chat_template(
                        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
                    )
                    if is_question
                    else text
                    for text, is_question in part
                ]
                params = [
                    SamplingParams(
                        temperature=chance.choice((0.0, 0.0, 0.7, 1.0)),
                        max_tokens=ANSWER_TOKENS,
                        seed=chance.getrandbits(32),
                    )
                    for _ in part
                ]
                for output in llm.generate(chats, params, use_tqdm=False):
                    texts.append([*output.prompt_token_ids, *output.outputs[0].token_ids])
            print(f"{sum(map(len, texts)):,} tokens", flush=True)
    return texts


def batches(texts: list[list[int]], chance: random.Random) -> Iterator[Tensor]:
    """Yield `[ROWS, LENGTH + 1]` tokens without end: texts one behind the other, in ever another order."""
    while True:
        chance.shuffle(texts)
        stream = torch.tensor([token for text in texts for token in text])
        for start in range(0, len(stream) - ROWS * (LENGTH + 1), ROWS * (LENGTH + 1)):
            yield stream[start : start + ROWS * (LENGTH + 1)].view(ROWS, LENGTH + 1)


def new_draft(target: LlamaForCausalLM, intermediate_size: int) -> LlamaForCausalLM:
    """Return a model of one layer with the target's embedding."""
    config = LlamaConfig.from_dict(
        {**target.config.to_dict(), "num_hidden_layers": 1, "intermediate_size": intermediate_size}
    )
    draft = LlamaForCausalLM(config)
    draft.model.embed_tokens.weight.data.copy_(target.model.embed_tokens.weight)
    draft.model.norm.weight.data.copy_(target.model.norm.weight)
    return draft.train()


def descend(loss: Tensor, model: torch.nn.Module, optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Take one step of the optimizer with clipped gradients."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def train(
    draft: LlamaForCausalLM, target: LlamaForCausalLM, texts: list[list[int]], flags: argparse.Namespace
) -> int:
    """Run until the time is over; returns the steps."""
    chance = random.Random(flags.seed)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=flags.lr, betas=(0.9, 0.95), weight_decay=0.0)
    began, steps, average = time.monotonic(), 0, 0.0
    for batch in batches(texts, chance):
        share = (time.monotonic() - began) / (flags.minutes * 60)
        if share >= 1:
            break
        with torch.no_grad():
            wanted = target(input_ids=batch[:, :-1], use_cache=False).logits.softmax(dim=-1)
        logits = draft(input_ids=batch[:, :-1], use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(0, 1))
        descend(loss, draft, optimizer, flags.lr * rate(share))
        steps += 1
        right = (logits.argmax(-1) == wanted.argmax(-1)).float().mean().item()
        average = right if steps == 1 else 0.95 * average + 0.05 * right
        if steps % 100 == 0:
            print(
                f"step {steps}: {share:.0%} of the time, loss {loss.item():.3f}, {average:.1%} alike",
                flush=True,
            )
    return steps


def make_parser(description: str | None, intermediate_size: int) -> argparse.ArgumentParser:
    """Return the flags of a training."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--target", type=Path, required=True, help="folder of the bundled model")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--minutes", type=float, default=15.0, help="how long to train")
    parser.add_argument("--generating-minutes", type=float, default=5.0)
    parser.add_argument("--intermediate-size", type=int, default=intermediate_size)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--texts", type=Path, help="file that keeps what was generated, or has it")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def texts_of(flags: argparse.Namespace) -> list[list[int]]:
    """Return what the bundled model has generated, or has it generate."""
    if flags.texts and flags.texts.exists():
        texts: list[list[int]] = json.loads(flags.texts.read_text())
        return texts
    texts = generate(flags.target, 60 * flags.generating_minutes, random.Random(flags.seed))
    if flags.texts:
        flags.texts.write_text(json.dumps(texts))
    return texts


def main() -> None:
    """Generate, train, write the folder."""
    flags = make_parser(__doc__, intermediate_size=704).parse_args()
    texts = texts_of(flags)
    torch.manual_seed(flags.seed)
    target = LlamaForCausalLM.from_pretrained(flags.target, dtype=torch.float32).eval()
    draft = new_draft(target, flags.intermediate_size)
    steps = train(draft, target, texts, flags)
    draft.to(torch.bfloat16).save_pretrained(flags.out)
    (flags.out / "generation_config.json").unlink(missing_ok=True)
    print(f"{steps} steps on {sum(map(len, texts)):,} tokens")


if __name__ == "__main__":
    main()
