"""Tools of requests for responses: the functions that the model may call, and their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from baton_core.errors import InvalidRequestError
from baton_router.http.chat.schemas import MAX_TOOLS, ChatTool, FunctionDefinition
from baton_router.http.responses.replies import ReplyNamespace, ReplyTool
from baton_router.http.responses.schemas import FunctionTool, ResponseTool


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedFunction:
    """A function that the model may call."""

    field: str
    """Its place in the request, such as `tools[1].tools[0]`."""
    namespace: str | None
    tool: FunctionTool

    @property
    def flat_name(self) -> str:
        """The name by which the model knows it."""
        return flat_name(self.namespace, self.tool.name)


def flat_name(namespace: str | None, name: str) -> str:
    """Return the name of a function for chat templates and parsers of calls, which know no namespaces."""
    return f"{namespace}__{name}" if namespace else name


def offered_functions(tools: Sequence[ResponseTool] | None) -> list[OfferedFunction]:
    """Return the functions of a request, those of namespaces included.

    Raises:
        InvalidRequestError: they are too many, a namespace has no name, or one flat name stands for two.
    """
    offered: list[OfferedFunction] = []
    for index, tool in enumerate(tools or ()):
        if tool.type == "function":
            offered.append(OfferedFunction(field=f"tools[{index}]", namespace=None, tool=tool))
        elif tool.type == "namespace":
            if not tool.name:
                raise InvalidRequestError(f"tools[{index}].name", tool.name, "the name of a namespace")
            offered += [
                OfferedFunction(field=f"tools[{index}].tools[{number}]", namespace=tool.name, tool=inner)
                for number, inner in enumerate(tool.tools or ())
                if inner.type == "function"
            ]
    if len(offered) > MAX_TOOLS:
        allowed = f"at most {MAX_TOOLS}, those of namespaces included"
        raise InvalidRequestError("tools", f"{len(offered)} functions", allowed)
    _check_names(offered)
    return offered


def _check_names(offered: Sequence[OfferedFunction]) -> None:
    namespaces: dict[str, str | None] = {}
    for each in offered:
        if namespaces.setdefault(each.flat_name, each.namespace) != each.namespace:
            allowed = (
                f"names that differ as the model knows them: {each.flat_name!r} is another function, too"
            )
            raise InvalidRequestError(f"{each.field}.name", each.tool.name, allowed)


def skipped_tools(tools: Sequence[ResponseTool] | None) -> Iterator[tuple[str, str]]:
    """Yield the place and the type of each tool that is neither a function nor a namespace of them."""
    for index, tool in enumerate(tools or ()):
        if tool.type == "namespace":
            for number, inner in enumerate(tool.tools or ()):
                if inner.type != "function":
                    yield f"tools[{index}].tools[{number}]", inner.type
        elif tool.type != "function":
            yield f"tools[{index}]", tool.type


def chat_tools(offered: Sequence[OfferedFunction]) -> list[ChatTool] | None:
    """Return functions as chats offer them; None if there are none.

    Raises:
        InvalidRequestError: one has no name.
    """
    return [_chat_tool(each) for each in offered] or None


def _chat_tool(offered: OfferedFunction) -> ChatTool:
    tool = offered.tool
    if not tool.name:
        raise InvalidRequestError(f"{offered.field}.name", tool.name, "the name of a function")
    return ChatTool(
        function=FunctionDefinition(
            name=offered.flat_name,
            description=tool.description,
            parameters=tool.parameters,
            strict=tool.strict,
        )
    )


def namespaced_names(tools: Sequence[ResponseTool] | None) -> Mapping[str, tuple[str | None, str]]:
    """Return the namespace and the name of each function in a namespace, by the name that the model knows."""
    return {
        each.flat_name: (each.namespace, each.tool.name)
        for each in offered_functions(tools)
        if each.namespace
    }


def reply_tools(tools: Sequence[ResponseTool] | None) -> list[ReplyTool | ReplyNamespace]:
    """Return the tools that a response lists: all but those that were skipped."""
    listed: list[ReplyTool | ReplyNamespace] = []
    for tool in tools or ():
        if tool.type == "function":
            listed.append(_reply_tool(tool))
        elif tool.type == "namespace":
            inner = [_reply_tool(each) for each in tool.tools or () if each.type == "function"]
            listed.append(ReplyNamespace(name=tool.name, description=tool.description, tools=inner))
    return listed


def _reply_tool(tool: FunctionTool) -> ReplyTool:
    return ReplyTool(
        name=tool.name,
        description=tool.description,
        parameters=msgspec.Raw(msgspec.json.encode(tool.parameters)),
        strict=tool.strict,
    )
