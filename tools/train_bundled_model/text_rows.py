"""The byte-level tokenizer, and rows of tokens drawn from the corpus for training."""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch
from corpus import Corpus
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT, TURN_START, TURN_END, PAD = SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
CHAT_TEMPLATE = (
    "{%- for message in messages -%}\n"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "{{- '<|im_start|>assistant\\n' -}}\n"
    "{%- endif -%}\n"
)
SYSTEM_MESSAGES = ("You are a helpful assistant.", "You answer questions about Python.", "Be brief.")
DOCUMENT_ROWS = 0.45  # the share of rows taken from documents; the others are conversations
FAVOURITES_TO = 0.4  # the share of turns about the favourite names,
WELL_KNOWN_TO = 0.7  # and of those with the turns about well-known names


def train_tokenizer(corpus: Corpus, vocabulary: int, longest: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE over the documents. It adds no token of its own to a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIALS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
    )
    texts = [
        *corpus.documents.values(),
        *(f"{question}\n{reply}" for question, reply in corpus.well_known + corpus.favourites),
    ]
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=TURN_END,
        pad_token=PAD,
        additional_special_tokens=[END_OF_TEXT, TURN_START, TURN_END, PAD],
        model_max_length=longest,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


class Rows:
    """Draws rows of any length: stretches of documents, and conversations one after another."""

    def __init__(self, corpus: Corpus, tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._encode = tokenizer.backend_tokenizer.encode_batch
        stream: list[int] = []
        self._starts: list[int] = []
        names = sorted(corpus.documents)
        for encoded in self._encode([END_OF_TEXT + corpus.documents[name] for name in names]):
            self._starts.append(len(stream))
            stream.extend(encoded.ids)
        self._stream = torch.tensor(stream)
        self._pairs = self._conversations(corpus.pairs)
        self._well_known = self._conversations(corpus.well_known)
        self._favourites = self._conversations(corpus.favourites * 4)
        self._end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
        self.document_tokens = len(stream)
        self.conversation_tokens = sum(map(len, self._pairs + self._well_known))

    def _conversations(self, pairs: Iterable[tuple[str, str]]) -> list[list[int]]:
        """One turn each; now and then a system message first, or a question put less carefully."""
        texts = []
        for question, reply in pairs:
            chance = self._random.random()
            if chance < 0.06:
                question = question.rstrip("?.")
            elif chance < 0.12:
                question = question[0].lower() + question[1:]
            system = ""
            if self._random.random() < 0.06:
                system = f"{TURN_START}system\n{self._random.choice(SYSTEM_MESSAGES)}{TURN_END}\n"
            texts.append(
                f"{system}{TURN_START}user\n{question}{TURN_END}\n{TURN_START}assistant\n{reply}{TURN_END}\n"
            )
        return [encoded.ids for encoded in self._encode(texts)]

    def _document_row(self, length: int) -> torch.Tensor:
        begin = self._random.randrange(len(self._stream) - length)
        if self._random.random() < 0.1:
            begin = min(self._random.choice(self._starts), len(self._stream) - length)
        return self._stream[begin : begin + length]

    def _conversation_row(self, length: int) -> torch.Tensor:
        row: list[int] = []
        while len(row) < length:
            chance = self._random.random()
            tier = self._pairs
            if chance < FAVOURITES_TO:
                tier = self._favourites
            elif chance < WELL_KNOWN_TO:
                tier = self._well_known
            row.extend(self._random.choice(tier))
            if self._random.random() < 0.4:
                row.append(self._end)
        return torch.tensor(row[:length])

    def draw(self, count: int, length: int) -> torch.Tensor:
        """`count` rows of `length` tokens."""
        rows = []
        for _ in range(count):
            from_document = self._random.random() < DOCUMENT_ROWS
            if from_document:
                rows.append(self._document_row(length))
            else:
                rows.append(self._conversation_row(length))
        return torch.stack(rows)
