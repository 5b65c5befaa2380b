"""The model card that training writes beside the weights."""

from __future__ import annotations

import argparse
import platform
from pathlib import Path

from corpus import Corpus
from evaluate import Score, answer
from transformers import AutoTokenizer, PreTrainedModel

TEMPLATE = """\
# Baton's bundled model

A very small Llama-shaped language model, so that Baton serves, is tested and is tried out with no network
and no download. It writes recognisable English in the manner of Python's documentation and answers
questions about the standard library, from memory and often wrongly. It is there to exercise a serving
system; it is not an assistant.

## Shape

| | |
|---|---|
| architecture | `LlamaForCausalLM`: {layers} layers, hidden {hidden}, intermediate {intermediate} |
| attention | {heads} query heads, {kv_heads} key-value heads of {head_dim}, rotary (theta 10000) |
| parameters | {parameters:,} (embedding and output head are the same matrix) |
| stored as | bfloat16, one safetensors file of {megabytes:.1f} MB |
| longest context | {longest} tokens |

## Tokenizer

Byte-level BPE with {vocabulary} tokens, trained on the same text: any text can be written, none is unknown.
Special tokens: `<|endoftext|>` (between documents), `<|im_start|>` and `<|im_end|>` (around a turn),
`<|pad|>`. **The tokenizer adds no token of its own**: no beginning-of-sequence token, whatever
`add_special_tokens` says. Generation ends at `<|endoftext|>` or `<|im_end|>` (both are listed in
`generation_config.json`).

The chat template is ChatML: `<|im_start|>user\\n…<|im_end|>\\n<|im_start|>assistant\\n…<|im_end|>\\n`.

## Data and licence

- Python's documentation (tutorial, library, reference, how-to and FAQ sections) and the docstrings of its
  standard library: {documents} documents, {characters:.1f} million characters. Copyright © 2001-2023 Python
  Software Foundation; used and redistributed under the Python Software Foundation License Version 2.
  Examples in the documentation are also under the Zero-Clause BSD licence.
- {pairs:,} pairs of question and answer made from the above by template ("What does X do?" and the first
  sentences of what is written about X), several to a name. Those about some 300 well-known names are shown
  far more often than the others, and those about some 50 favourites most of all.
- About fifteen greetings and the like, written for this corpus.

No other text was used. The weights and the tokenizer are derived from that text and come under the same
licence, the PSF License Version 2 (https://docs.python.org/3/license.html).

## Training

From random weights, in float32 on {threads} CPU threads: {minutes:.0f} minutes, {steps:,} steps of 2,048
tokens, {tokens:.1f} million tokens in all. Two thirds of the steps have rows of 256 tokens, the others 512,
1024 or 2048. Rather less than half of the rows are documents, the others conversations. Muon (peak rate
{matrix_lr}) for the matrices of the layers, AdamW (peak rate {lr}) for embedding and norms; a short
warm-up, a plateau, then a straight line to zero, tied to the time given.

## Measured

On {held_out} documents held out of training and of the tokenizer ({held_out_tokens:,} tokens,
{held_out_bytes:,} bytes; windows of 1024 tokens, weights as stored, computed in float32):

| | |
|---|---|
| perplexity per token | {perplexity:.2f} |
| bits per byte | {bits_per_byte:.3f} |

Greedy answers:

{samples}

## Limits

It knows nothing but Python's documentation, and little of that. It mixes up functions that have similar
names, makes up signatures, cannot reason, count or follow instructions, and soon loses the thread in longer
text. Languages other than English give nonsense. Nothing was done to make its output safe or correct.

## Training it again

With Baton's `worker` extra installed and Python's documentation at hand (Debian: `apt-get install
python3.11-doc`), from the root of the repository:

    python tools/train_bundled_model/train.py --docs /usr/share/doc/python3.11/html \\
        --out api/baton/bundled --minutes {minutes:.0f}

`tools/train_bundled_model/evaluate.py` prints the perplexity and sample answers. The pages held out are
chosen by a checksum of their names. Results differ between machines, as the schedule is tied to the clock.
Made with Python {python}.
"""
QUESTIONS = (
    "What does os.path.join do?",
    "What is the json module?",
    "What is collections.deque?",
    "How do I use sorted?",
)


def write_card(
    out: Path,
    model: PreTrainedModel,
    corpus: Corpus,
    result: Score,
    steps: int,
    tokens: int,
    flags: argparse.Namespace,
) -> None:
    """Fills in the card with what was trained and measured."""
    config = model.config
    tokenizer = AutoTokenizer.from_pretrained(out)
    samples = "\n".join(
        f"**{question}**\n\n> " + answer(model, tokenizer, question).replace("\n", "\n> ") + "\n"
        for question in QUESTIONS
    )
    text = TEMPLATE.format(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        megabytes=(out / "model.safetensors").stat().st_size / 1e6,
        longest=config.max_position_embeddings,
        vocabulary=config.vocab_size,
        documents=len(corpus.documents),
        characters=sum(map(len, corpus.documents.values())) / 1e6,
        pairs=len(corpus.pairs) + len(corpus.well_known) + len(corpus.favourites),
        threads=flags.threads,
        minutes=flags.minutes,
        steps=steps,
        tokens=tokens / 1e6,
        matrix_lr=flags.matrix_lr,
        lr=flags.lr,
        held_out=len(corpus.held_out),
        held_out_tokens=result.tokens,
        held_out_bytes=result.text_bytes,
        perplexity=result.perplexity,
        bits_per_byte=result.bits_per_byte,
        samples=samples.rstrip("\n"),
        python=platform.python_version(),
    )
    (out / "README.md").write_text(text)
