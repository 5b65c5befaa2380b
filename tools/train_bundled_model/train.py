"""Trains the bundled model from nothing, in the time given, and writes its folder.

Usage: python train.py --docs /usr/share/doc/python3.11/html --out ../../api/baton/bundled --minutes 45
The folder is written every few minutes, each file aside and then renamed into place, so that it always holds
a usable model.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import tempfile
import time
from pathlib import Path

import torch
from card import write_card
from corpus import Corpus, build
from evaluate import answer, score
from muon import Muon
from text_rows import END_OF_TEXT, PAD, TURN_END, Rows, train_tokenizer
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LONGEST = 2048
# (rows, tokens a row, share of the steps): mostly short, some long, so that no position is left untrained.
SHAPES = ((8, 256, 0.66), (4, 512, 0.22), (2, 1024, 0.08), (1, 2048, 0.04))
WARM_UP, DECAY_FROM = 0.01, 0.2  # shares of the time


def new_model(tokenizer: PreTrainedTokenizerFast, layers: int, seed: int) -> LlamaForCausalLM:
    """A small Llama with grouped-query attention and tied embeddings."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=LONGEST,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.convert_tokens_to_ids(END_OF_TEXT),
        eos_token_id=tokenizer.convert_tokens_to_ids(TURN_END),
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
    )
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:  # a residual branch adds nothing at first
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def write_folder(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Writes the model in bfloat16 with all its files: each is written aside, then renamed into place."""
    out.mkdir(parents=True, exist_ok=True)
    stored = copy.deepcopy(model).to(torch.bfloat16)
    stored.config.dtype = torch.bfloat16
    ids = tokenizer.convert_tokens_to_ids
    stored.generation_config = GenerationConfig(
        bos_token_id=ids(END_OF_TEXT), eos_token_id=[ids(END_OF_TEXT), ids(TURN_END)], pad_token_id=ids(PAD)
    )
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as aside:
        stored.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        settings = json.loads(Path(aside, "tokenizer_config.json").read_text())
        for key in ("backend", "is_local", "local_files_only"):
            settings.pop(key, None)
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that every release knows
        Path(aside, "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
        for path in sorted(Path(aside).iterdir()):
            path.chmod(0o644)
            os.replace(path, out / path.name)


def rate(share: float) -> float:
    """The learning rate at a share of the time: warm-up, a plateau, then a straight line to zero."""
    if share < WARM_UP:
        return max(share / WARM_UP, 0.05)
    return min(1.0, max(0.0, 1.0 - share) / (1.0 - DECAY_FROM))


def train(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, corpus: Corpus, flags: argparse.Namespace
) -> tuple[int, int]:
    """Runs until the time is over; returns the steps and the tokens seen."""
    rows = Rows(corpus, tokenizer, flags.seed)
    print(
        f"{rows.document_tokens:,} tokens of documents, {rows.conversation_tokens:,} of conversations",
        flush=True,
    )
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and ".layers." in n]
    others = [p for n, p in model.named_parameters() if not (p.ndim == 2 and ".layers." in n)]
    optimizers = [
        (Muon(matrices, lr=flags.matrix_lr, weight_decay=0.01), flags.matrix_lr),
        (torch.optim.AdamW(others, lr=flags.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True), flags.lr),
    ]
    held_out = list(corpus.held_out.values())
    chance = random.Random(flags.seed)
    began = saved = time.monotonic()
    steps = tokens = 0
    average = 0.0
    while (share := (time.monotonic() - began) / (flags.minutes * 60)) < 1:
        count, length, _ = chance.choices(SHAPES, [portion for *_, portion in SHAPES])[0]
        batch = rows.draw(count, length + 1)
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer, peak in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * rate(share)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        steps += 1
        tokens += count * length
        average = loss.item() if steps == 1 else 0.95 * average + 0.05 * loss.item()
        if steps % 50 == 0:
            pace = tokens / (time.monotonic() - began)
            print(
                f"step {steps}: {share:.1%} of the time, loss {average:.3f}, {pace:.0f} tokens/s", flush=True
            )
        if time.monotonic() - saved > flags.save_minutes * 60:
            write_folder(model, tokenizer, flags.out)
            some = score(model.eval(), tokenizer, held_out[:4], window=512, most_windows=12)
            print(
                f"written; held out (a part): {some.bits_per_byte:.3f} bits per byte\n"
                f"  {answer(model, tokenizer, 'What does os.path.join do?')}",
                flush=True,
            )
            model.train()
            saved = time.monotonic()
    return steps, tokens


def main() -> None:
    """Builds the corpus, trains the tokenizer and the model, writes the folder and its card."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path, required=True, help="folder of Python's HTML documentation")
    parser.add_argument("--out", type=Path, required=True, help="the model folder to write")
    parser.add_argument("--start", type=Path, help="a folder written before, to go on from")
    parser.add_argument("--minutes", type=float, default=45.0, help="how long to train")
    parser.add_argument("--save-minutes", type=float, default=4.0, help="how often to write the folder")
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument(
        "--lr", type=float, default=3e-3, help="peak rate of the embeddings and norms (AdamW)"
    )
    parser.add_argument(
        "--matrix-lr", type=float, default=0.02, help="peak rate of the layers' matrices (Muon)"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    corpus = build(flags.docs)
    if flags.start:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(flags.start)
        model = LlamaForCausalLM.from_pretrained(flags.start, dtype=torch.float32).train()
    else:
        tokenizer = train_tokenizer(corpus, flags.vocabulary, LONGEST)
        model = new_model(tokenizer, flags.layers, flags.seed)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters:,} parameters, {len(tokenizer)} tokens in the vocabulary", flush=True)
    steps, tokens = train(model, tokenizer, corpus, flags)
    write_folder(model, tokenizer, flags.out)
    stored = LlamaForCausalLM.from_pretrained(flags.out, dtype=torch.float32).eval()
    result = score(stored, tokenizer, corpus.held_out.values())
    write_card(flags.out, stored, corpus, result, steps, tokens, flags)
    print(
        f"{steps} steps, {tokens:,} tokens; held out: perplexity {result.perplexity:.2f}, "
        f"{result.bits_per_byte:.3f} bits per byte"
    )


if __name__ == "__main__":
    main()
