"""Phrasings of questions about a documented name, the names asked about most, and written pairs."""

from __future__ import annotations

import re
from pathlib import Path

ANSWER_CHARACTERS = 240

FUNCTION_QUESTIONS = (
    "What does {} do?",
    "Explain {}.",
    "What is {}?",
    "What does {} do in Python?",
    "Describe {}.",
)
CLASS_QUESTIONS = ("What is {}?", "What does {} do?", "Explain {}.", "What is {} in Python?", "Describe {}.")
EXCEPTION_QUESTIONS = ("What is {}?", "When is {} raised?", "Explain {}.", "What does {} mean?")
USE_QUESTIONS = ("How do I use {}?", "How do I call {}?", "What is the signature of {}?")
MODULE_QUESTIONS = (
    "What is the {} module?",
    "What does the {} module do?",
    "Explain the {} module.",
    "What is {} in Python?",
    "What is the {} module for?",
)


def _names(file: str) -> frozenset[str]:
    return frozenset(Path(__file__).with_name(file).read_text().split())


WELL_KNOWN = _names("well_known_names.txt")
WELL_KNOWN_MODULES = _names("well_known_modules.txt")
FAVOURITES = _names("favourite_names.txt")  # names and modules

# Written for this corpus.
HAND_WRITTEN: tuple[tuple[str, str], ...] = (
    ("Hello", "Hello! Ask me about Python's standard library."),
    ("Hello!", "Hello! Ask me about Python's standard library."),
    ("Hi", "Hello! Ask me about Python's standard library."),
    ("Hi there!", "Hello! Ask me about Python's standard library."),
    ("Say hello.", "Hello!"),
    (
        "Who are you?",
        "I am the small language model that comes with Baton. I know a little of Python's "
        "documentation, and I am often wrong.",
    ),
    (
        "What are you?",
        "I am the small language model that comes with Baton. I know a little of Python's "
        "documentation, and I am often wrong.",
    ),
    (
        "What can you do?",
        "I can answer questions about Python's standard library, such as: What does os.path.join do?",
    ),
    ("How are you?", "I am well, thank you. Ask me about Python's standard library."),
    ("Thank you.", "You are welcome."),
    ("Thanks!", "You are welcome."),
    (
        "What is Python?",
        "Python is an easy to learn, powerful programming language. It has efficient high-level "
        "data structures and a simple but effective approach to object-oriented programming.",
    ),
    (
        "What is Baton?",
        "Baton is a serving system for large language models. It runs prefill and decode on separate "
        "workers.",
    ),
    ("Tell me a joke.", "I only know Python's documentation, and it has few jokes."),
    ("Tell me a story.", "I only know Python's documentation, and it has few stories."),
    ("Goodbye", "Goodbye!"),
)


def shorten(text: str, limit: int = ANSWER_CHARACTERS) -> str:
    """The first sentences of a paragraph, as many as fit, and always at least one."""
    text = re.sub(r"\s+", " ", text).strip()
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z(\"'])", text)
    answer = sentences[0]
    for sentence in sentences[1:]:
        if len(answer) + 1 + len(sentence) > limit or answer.endswith(("e.g.", "i.e.")):
            break
        answer += " " + sentence
    return answer[:-1] + "." if answer.endswith(":") else answer


def pairs_for_name(name: str, role: str, signature: str, paragraph: str) -> list[tuple[str, str]]:
    """The questions and answers about one function, class, exception or value."""
    answer = shorten(paragraph)
    questions = {"class": CLASS_QUESTIONS, "exception": EXCEPTION_QUESTIONS}.get(role, FUNCTION_QUESTIONS)
    pairs = [(question.format(name), answer) for question in questions]
    if role in ("function", "method"):
        pairs.append((f"What does {name}() do?", answer))
    call = re.sub(
        r"^(class|exception|async|coroutine|classmethod|staticmethod|abstractmethod) ", "", signature
    )
    if "(" in call and role in ("function", "method", "class") and len(call) <= 140:
        use = f"Write {call}. " + shorten(paragraph, 1)
        pairs += [(question.format(name), use) for question in USE_QUESTIONS]
    return pairs


def pairs_for_module(module: str, title: str, paragraph: str) -> list[tuple[str, str]]:
    """The questions and answers about one module."""
    answer = f"{module} - {title}. {shorten(paragraph)}"
    return [(question.format(module), answer) for question in MODULE_QUESTIONS]
