"""Turns one page of the Python documentation (Sphinx HTML) into a list of plain-text blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

BLOCK_TAGS = {
    "p",
    "li",
    "dt",
    "dd",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "pre",
    "tr",
    "table",
    "div",
    "ul",
    "ol",
    "dl",
}
SKIPPED_CLASSES = {"headerlink", "highlight-linenos", "linenos", "copybutton"}
VOID_TAGS = {"br", "img", "hr", "input", "meta", "link", "col", "wbr", "source"}


@dataclass
class Block:
    """A heading, a signature (`sig`), a paragraph, a list item, a row of a table or a piece of code."""

    kind: str
    text: str
    name: str = ""
    role: str = ""  # for a signature: function, method, class, exception, data, attribute


@dataclass
class PageParser(HTMLParser):
    """Collects the blocks inside the page's main division."""

    blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[tuple[str, bool]] = []  # tag, whether its content is skipped
        self._roles: list[str] = []
        self._inside = 0  # depth of the open-tag stack where the body began, 0 outside
        self._kind = "para"
        self._name = ""
        self._text: list[str] = []

    def _flush(self) -> None:
        raw = "".join(self._text)
        self._text = []
        text = raw.strip("\n").rstrip() if self._kind == "code" else re.sub(r"\s+", " ", raw).strip()
        if text:
            role = self._roles[-1] if self._roles and self._kind == "sig" else ""
            self.blocks.append(Block(self._kind, text, self._name if self._kind == "sig" else "", role))
        self._kind = "para"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID_TAGS:
            return
        values = {key: value or "" for key, value in attrs}
        classes = values.get("class", "").split()
        skipped = tag in ("script", "style") or bool(SKIPPED_CLASSES & set(classes))
        skipped = skipped or bool(self._open and self._open[-1][1])
        self._open.append((tag, skipped))
        if not self._inside:
            if tag == "div" and values.get("role") == "main":
                self._inside = len(self._open)
            return
        if tag in BLOCK_TAGS and not (tag in ("p", "div") and self._kind in ("item", "row")):
            self._flush()
        if tag == "dl":
            self._roles.append(classes[1] if len(classes) > 1 and classes[0] == "py" else "")
        elif re.fullmatch(r"h[1-5]", tag):
            self._kind = "h" + tag[1]
        elif tag == "pre":
            self._kind = "code"
        elif tag == "li":
            self._kind = "item"
        elif tag == "tr":
            self._kind = "row"
        elif tag == "dt" and "sig" in classes:
            self._kind, self._name = "sig", values.get("id", "")
        elif tag in ("td", "th") and self._text:
            self._text.append(" | ")

    def handle_endtag(self, tag: str) -> None:
        if not any(open_tag == tag for open_tag, _ in self._open):
            return
        while self._open:
            open_tag, _ = self._open.pop()
            if (
                self._inside
                and open_tag in BLOCK_TAGS
                and not (open_tag in ("p", "div") and self._kind == "row")
            ):
                self._flush()
            if self._inside and open_tag == "dl" and self._roles:
                self._roles.pop()
            if self._inside and len(self._open) < self._inside:
                self._inside = 0
            if open_tag == tag:
                break

    def handle_data(self, data: str) -> None:
        if self._inside and not self._open[-1][1]:
            self._text.append(data)


def plain(text: str) -> str:
    """Typographic signs as their plain equivalents: fewer rare tokens for a small vocabulary."""
    for sign, replacement in (
        ("“", '"'),
        ("”", '"'),
        ("‘", "'"),
        ("’", "'"),
        ("…", "..."),
        ("\u00a0", " "),
        ("¶", ""),
        ("→", "->"),
        ("–", "-"),
        ("—", "-"),
        ("\u200b", ""),
    ):
        text = text.replace(sign, replacement)
    return text


def parse_page(html: str) -> list[Block]:
    """The blocks of a page, in order."""
    parser = PageParser()
    parser.feed(html)
    parser.close()
    for block in parser.blocks:
        block.text = plain(block.text)
    return parser.blocks


def page_text(blocks: list[Block]) -> str:
    """The blocks of a page as text: headings marked with #, items with -, code indented by four spaces."""
    parts: list[str] = []
    previous = ""
    for block in blocks:
        if block.kind.startswith("h"):
            text = "#" * int(block.kind[1]) + " " + block.text
        elif block.kind == "item":
            text = "- " + block.text
        elif block.kind == "code":
            text = "\n".join("    " + line if line.strip() else "" for line in block.text.split("\n"))
        else:
            text = block.text
        tight = block.kind == previous and block.kind in ("item", "row", "sig")
        tight = tight or previous == "sig"
        if parts:
            parts.append("\n" if tight else "\n\n")
        parts.append(text)
        previous = block.kind
    return "".join(parts) + "\n"
