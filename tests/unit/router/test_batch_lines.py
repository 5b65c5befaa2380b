"""Lines of batches are checked before any is sent, and forms are read however they are cut."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path

import httpx
import pytest

from baton_core.errors import InvalidRequestError
from baton_router.batches.partial_results import read_lines
from baton_router.core.batches.batch_lines import MAX_ERRORS, BatchRequest, InputChecks, read_line
from baton_router.http.multipart import MAX_HEADER_BYTES, MAX_PARTS, MultipartReader, Part

CHAT = "/v1/chat/completions"


def line(custom_id: str, url: str = CHAT) -> bytes:
    return b'{"custom_id":"%b","method":"POST","url":"%b","body":{}}' % (custom_id.encode(), url.encode())


def checked(*lines: bytes, max_lines: int = 1000) -> InputChecks:
    checks = InputChecks(CHAT, max_lines)
    for number, content in enumerate(lines, 1):
        checks.add(number, read_line(number, content))
        if checks.is_over:
            break
    checks.end()
    return checks


def test_good_lines_have_no_errors() -> None:
    checks = checked(line("a"), line("b"))
    assert (checks.num_lines, checks.errors) == (2, [])


def test_each_wrong_line_is_named() -> None:
    errors = checked(line("a"), b"{", line("b", "/v1/completions"), line("a"), line("c")).errors
    assert [(error.code, error.line) for error in errors] == [
        ("invalid_line", 2),
        ("mismatched_url", 3),
        ("duplicate_custom_id", 4),
    ]
    assert errors[1].message == f"url is '/v1/completions'; allowed: {CHAT}, the endpoint of the batch"
    assert errors[2].message == "custom_id is 'a' on two lines; allowed: another one on each"


def test_a_line_may_say_in_any_form_that_it_is_not_streamed() -> None:
    for value, is_right in (
        (b"false", True),
        (b'"false"', True),
        (b"null", True),
        (b'"true"', False),
        (b"1", False),
    ):
        content = line("a").replace(b"{}", b'{"stream":%b}' % value)
        assert isinstance(read_line(1, content), BatchRequest) is is_right, value


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(BOM_UTF8 + line("a") + b"\n" + line("b"))
    assert [each.custom_id for each in read_lines(path)] == ["a", "b"]
    path.write_bytes(BOM_UTF8 + b"\n" + line("b"))
    assert [each.custom_id for each in read_lines(path)] == ["b"]


def test_bounds_of_lines_and_errors() -> None:
    (error,) = checked(line("a"), line("b"), line("c"), max_lines=2).errors
    assert error.message == "lines is over 2; allowed: at most that many (--max-batch-lines)"
    assert len(checked(*[b"{"] * 500).errors) == MAX_ERRORS
    (error,) = checked().errors
    assert error.code == "empty_file"


def test_fields_are_added_where_a_body_lacks_them_or_says_null() -> None:
    content = (
        b'{"custom_id":"a","method":"POST","url":"/v1/completions","body": '
        b'{"prompt":"\\u00e9","n":null ,"m":null } }'
    )
    read = read_line(1, content)
    assert isinstance(read, BatchRequest)
    body = b'{"prompt":"\\u00e9","n":2,"m":null,"store":false}'
    assert read.body_with({"n": 2, "store": False}) == body


def read_form(content_type: str, body: bytes, step: int) -> list[tuple[str, str | None, bytes]]:
    """Read a form, `step` bytes at a time; returns names, file names and contents."""
    reader = MultipartReader(content_type)
    parts: list[tuple[str, str | None, bytes]] = []
    for place in range(0, len(body), step):
        for event in reader.feed(body[place : place + step]):
            match event:
                case Part():
                    parts.append((event.name, event.filename, b""))
                case bytes():
                    parts[-1] = (*parts[-1][:2], parts[-1][2] + event)
    reader.close()
    return parts


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 10**6])
def test_a_form_is_read_however_it_is_cut(step: int) -> None:
    content = b"\r\n--\r\n--b\r\nX: \r\n\r\n" + bytes(range(256)) * 3 + b"\r\n"
    files = {"file": ('a "b" \\ é.jsonl', content), "empty": ("e", b"")}
    request = httpx.Request("POST", "http://h/", data={"purpose": "batch", "a[b]": "1"}, files=files)
    body = b"ignored\r\n" + request.read() + b"after"
    assert read_form(request.headers["content-type"], body, step) == [
        ("purpose", None, b"batch"),
        ("a[b]", None, b"1"),
        ("file", 'a "b" \\ é.jsonl', content),
        ("empty", "e", b""),
    ]


def test_a_file_may_have_its_name_in_the_form_of_mail() -> None:
    """.NET's clients write the name twice: encoded as in mail, and in the form that counts."""
    head = b'--b\r\nContent-Disposition: form-data; name="f"'
    name, plain = b"; filename*=UTF-8''%e2%82%ac%20%22's.jsonl", b'; filename="=?utf-8?B?4oKsICIuanNvbmw=?="'
    for given in (name, plain + name, name + plain):
        body = head + given + b"\r\n\r\nx\r\n--b--"
        assert read_form("multipart/form-data; boundary=b", body, 50) == [("f", "€ \"'s.jsonl", b"x")]


HEAD = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n'


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "body is 'cut off'"),
        (HEAD + b"x\r\n--b", "body is 'cut off'"),
        (b"--b\r\nContent-Type: a/b\r\n\r\nx\r\n--b--", "parts with Content-Disposition: form-data"),
        (b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--", "parts with a name"),
        (b"--b\r\n" + b"a" * (2 * MAX_HEADER_BYTES), f"at most {MAX_HEADER_BYTES} bytes"),
        ((HEAD + b"\r\n") * (MAX_PARTS + 1) + b"--b--", f"at most {MAX_PARTS}"),
    ],
)
def test_what_is_no_form_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_form("multipart/form-data; boundary=b", body, 50)


@pytest.mark.parametrize(
    "kind", ["application/json", "multipart/form-data", "multipart/form-data; boundary=é"]
)
def test_other_content_types_are_refused(kind: str) -> None:
    with pytest.raises(InvalidRequestError, match="content-type is "):
        MultipartReader(kind)
