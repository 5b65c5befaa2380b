"""Runs chat templates: Jinja as Transformers sets it up, sandboxed and bounded in time.

A rendering may take so much processor time and yield so much text; loops, macros and output check it, so that
errors say which. A single expression is not interrupted here: the process that renders has limits of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_RENDER_S: Final = 2.0
"""Processor time of the thread."""
MAX_TEXT_CHARACTERS: Final = 2**24
"""Characters of a rendering, and of the product of one multiplication."""
_MAX_EXPONENT: Final = 64
_DEADLINE: Final = "baton deadline"
"""No name that a template could use or set."""


class TemplateLimitError(TemplateError):
    """A rendering takes more than it may."""


def render_bounded(template: Template, variables: Mapping[str, Any]) -> str:
    """Render, within the limits.

    Raises:
        TemplateLimitError: it takes more time or yields more text than it may.
        Exception: whatever the template's code raises.
    """
    pieces: list[str] = []
    num_characters = 0
    for piece in template.generate({**variables, _DEADLINE: time.thread_time() + MAX_RENDER_S}):
        num_characters += len(piece)
        if num_characters > MAX_TEXT_CHARACTERS:
            raise TemplateLimitError(f"it yields more than {MAX_TEXT_CHARACTERS} characters")
        pieces.append(piece)
    return "".join(pieces)


def make_environment() -> ImmutableSandboxedEnvironment:
    """Return an environment with the filters, tags and functions that templates of models use."""
    environment = _BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_GenerationBlock, loopcontrols]
    )
    del environment.globals["lipsum"]
    environment.filters["tojson"] = _to_json
    environment.globals["dict"] = _make_dict
    environment.globals["namespace"] = _Namespace
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _UnfoldedCode(CodeGenerator):
    """Leaves constant expressions to the rendering, which has limits; compiling has none."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Puts a look at the clock into every loop and macro, and bounds what one multiplication makes."""

    code_generator_class = _UnfoldedCode
    intercepted_binops = frozenset({"*", "**"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for block in list(template.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
            assert isinstance(block, nodes.For | nodes.Macro | nodes.CallBlock), "each has a body"
            check = nodes.EnvironmentAttribute("check_time")
            look = nodes.ExprStmt(nodes.Call(check, [nodes.ContextReference()], [], None, None))
            block.body.insert(0, look.set_lineno(block.lineno).set_environment(self))
        return template

    def check_time(self, context: Context) -> None:
        """Raise TemplateLimitError if this rendering has used up its time."""
        if time.thread_time() > context.parent[_DEADLINE]:
            raise TemplateLimitError(f"it takes more than {MAX_RENDER_S:g} s")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (_is_number(left) and _is_number(right) and abs(right) <= _MAX_EXPONENT):
            raise SecurityError(f"powers may be those of numbers, up to {_MAX_EXPONENT}")
        for many, times in ((left, right), (right, left)):
            is_repeated = isinstance(many, str | bytes | list | tuple) and isinstance(times, int)
            if is_repeated and len(many) * times > MAX_TEXT_CHARACTERS:
                raise SecurityError(f"what is repeated may be {MAX_TEXT_CHARACTERS} long")
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(Extension):
    """`{% generation %}`: marks the assistant's words for training; renders as its body."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Namespace(Namespace):
    """Jinja's, without names that could reach Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *pairs = args  # so that an entry may be called `self`
        entries = dict(*pairs, **kwargs)
        for name in entries:
            _check_entry(name)
        Namespace.__init__(self, entries)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_entry(name)
        super().__setitem__(name, value)


def _check_entry(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(
            f"an entry of a namespace is {name!r}; allowed: names that begin with no underscore"
        )


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """The class itself would give templates its other methods."""
    return dict(*args, **kwargs)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= _MAX_EXPONENT)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML; models were trained on plain JSON."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
