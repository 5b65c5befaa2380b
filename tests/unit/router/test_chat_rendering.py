from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import pytest

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_router.text.chat_rendering import LIMITS, ChatRendering
from baton_router.text.chat_template import Conversation

pytestmark = pytest.mark.slow

MESSAGES: Final = ({"role": "user", "content": "hello"},)
PLAIN: Final = "{% for message in messages %}{{ bos_token }}{{ message.content }}{% endfor %}"
HOSTILE: Final = {
    "sort": "{{ ('ab' * 8000000) | sort | length }}",
    "batch": "{{ ('ab' * 8000000) | batch(2) | list | length }}",
    "powers of integers": "{{ ((7 ** 64) ** 2 ** 40) }}",
    "powers in steps": "{% set ns = namespace(x=3) %}"
    + "{% for _ in range(26) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    "center": "{{ 'a' | center(1500000000) | length }}{{ 'é' | center(1500000000) | length }}",
    "doubling": "{% set ns = namespace(x='ab') %}"
    + "{% for _ in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "replacing": "{% set x = 'a' * 4096 %}{{ x.replace('a', x).replace('a', x) | length }}",
    "lists": "{{ range(99999) | list | batch(1) | list | tojson | sort | join | length }}" * 200,
    "a long format": "{{ '%2000000000d' % 1 }}",
}


@pytest.fixture(scope="module")
def rendering() -> Iterator[ChatRendering]:
    made = ChatRendering({"bos_token": "<s>"}, replace(LIMITS, cpu_s=1.5))
    yield made
    made.close()


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_template_ends_by_name_and_leaves_the_rest_alone(
    rendering: ChatRendering, source: str
) -> None:
    with pytest.raises(InvalidRequestError, match="chat"):
        rendering.render(source, Conversation(messages=MESSAGES))
    assert rendering.render(PLAIN, Conversation(messages=MESSAGES)) == "<s>hello"


def test_other_threads_go_on_while_an_expression_holds_the_interpreter_of_its_process(
    rendering: ChatRendering,
) -> None:
    source = "{{ 3 ** 64 }}{{ ('ab' * 8000000) | sort }}"
    num_rendered = 0
    with ThreadPoolExecutor(1) as thread:
        ends = thread.submit(rendering.render, source, Conversation(messages=MESSAGES))
        while not ends.done():
            assert rendering.render(PLAIN, Conversation(messages=MESSAGES)) == "<s>hello"
            num_rendered += 1
        # Memory may be used up before the time is.
        with pytest.raises(InvalidRequestError, match=r"renders within 1.5 s of processor time|MemoryError"):
            ends.result()
    assert num_rendered > 3


def test_refusals_name_field_and_value_as_the_template_and_the_messages_gave_them(
    rendering: ChatRendering,
) -> None:
    cases = {
        "messages[0] is {'content': 'a'}; allowed: objects with a role": (PLAIN, ({"content": "a"},)),
        "messages[0].content is 7; allowed: text, a list of parts, or null": (
            PLAIN,
            ({"role": "user", "content": 7},),
        ),
        "chat is 'messages of user'; allowed: what the model's chat template takes (no users)": (
            "{{ raise_exception('no users') }}",
            MESSAGES,
        ),
    }
    for text, (source, messages) in cases.items():
        with pytest.raises(InvalidRequestError) as error:
            rendering.render(source, Conversation(messages=messages))
        assert str(error.value) == text
    with pytest.raises(InvalidRequestError, match=r"chat_template is '{% for'; allowed: Jinja \(unexp"):
        rendering.render("{% for", Conversation(messages=MESSAGES))


def test_text_that_utf_8_cannot_hold_and_large_integers_arrive(rendering: ChatRendering) -> None:
    conversation = Conversation(
        messages=({"role": "user", "content": "\ud800"},), template_arguments={"number": 10**30}
    )
    assert rendering.render("{{ messages[0].content }}{{ number }}", conversation) == f"\ud800{10**30}"
    with pytest.raises(InvalidRequestError, match="what JSON can hold"):
        rendering.render(PLAIN, replace(conversation, template_arguments={"object": object()}))


def test_a_template_that_a_busy_machine_did_not_render_is_not_called_wrong() -> None:
    slow = ChatRendering({}, replace(LIMITS, cpu_s=60.0, wall_s=0.5))
    with pytest.raises(RequestError) as error:
        slow.render("{{ ('ab' * 8000000) | sort }}" * 20, Conversation(messages=MESSAGES))
    assert error.value.code is ErrorCode.DEADLINE_EXCEEDED
    slow.close()
    with pytest.raises(RequestError) as error:
        slow.render(PLAIN, Conversation(messages=MESSAGES))
    assert error.value.code is ErrorCode.UNAVAILABLE


def test_a_stranger_does_not_slow_down_a_close(rendering: ChatRendering) -> None:
    busy = ChatRendering({}, replace(LIMITS, cpu_s=600.0, wall_s=600.0))
    errors: list[BaseException] = []

    def render() -> None:
        try:
            busy.render("{{ ('ab' * 8000000) | sort }}" * 900, Conversation(messages=MESSAGES))
        except RequestError as error:
            errors.append(error)

    thread = threading.Thread(target=render)
    thread.start()
    while busy._processes.fork_server_pid is None:
        time.sleep(0.01)
    busy.close()
    thread.join(60)
    assert len(errors) == 1
