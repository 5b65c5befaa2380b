"""A test's way to talk with a model on the chat page."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from playwright.sync_api import Locator, Page, Request, Route, expect

CHAT: Final = "**/v1/chat/completions"
PHONE: Final = {"width": 390, "height": 844}
WRITTEN: Final = """## Reading JSON

The `json` module reads **text** &amp; gives &mdash; in time &mdash; *objects*:

```python
with open("a.json") as file:
    print(json.load(file)["a < b"])
```

1. `load`
   - [x] checks

| JSON | Python |
|:-----|-------:|
| array | `list` |

<img src=x onerror="window.harmed = 1"><script>window.harmed = 1</script>

Two
lines

[docs](https://docs.python.org) [bad](javascript:window.harmed=1) ![picture](https://example.org/a.png)
"""
"""An answer with all that the page knows of Markdown, and with what it must not do."""


def is_chat(request: Request) -> bool:
    return request.method == "POST" and request.url.endswith("/v1/chat/completions")


def adding(**fields: Any) -> Callable[[Route], None]:
    """Give the requests of the page further fields on their way to the server."""

    def route(route: Route) -> None:
        route.continue_(post_data=json.dumps(route.request.post_data_json | fields))

    return route


def refusing(status: int, message: str) -> Callable[[Route], None]:
    """Refuse the requests of the page, which may come again after 3 s."""

    def route(route: Route) -> None:
        route.fulfill(status=status, headers={"retry-after": "3"}, json={"error": {"message": message}})

    return route


def say(page: Page, text: str) -> Locator:
    """Send a message; returns its answer."""
    page.fill("#text", text)
    page.keyboard.press("Enter")
    return page.locator(".answer").last


def text_of(answer: Locator) -> str:
    return answer.locator("> .markdown").inner_text()


def ended(answer: Locator, state: str = "finished") -> None:
    """Wait until an answer is in this state."""
    expect(answer).to_have_class(f"answer {state}")
