import msgspec
import pytest

from baton_core.errors import InvalidRequestError
from baton_router.http.pooling.schemas import RerankRequest
from baton_router.http.pooling.scoring import texts_of

PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def documents_of(given: object) -> list[str]:
    body = msgspec.convert({"query": "q", "documents": given}, RerankRequest)
    return texts_of("documents", body.documents)


def test_a_text_may_be_an_object_with_text_or_parts() -> None:
    assert documents_of(["x", {"text": "y"}, {"content": PARTS}]) == ["x", "y", "a\nb"]
    assert documents_of({"text": "y"}) == ["y"]
    assert documents_of({"content": PARTS}) == ["a", "b"], "each part is one, as in vLLM"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{}], "documents[0].text is None; allowed: a text, or parts of one as content"),
        ({"text": "y", "content": PARTS}, "documents.text is 'y'; allowed: a text, or parts"),
        ({"content": []}, "documents.content is []; allowed: at least one part"),
        (["x", {"content": [{"type": "text"}]}], "documents[1].content[0].text is None"),
        ({"content": [{"type": "image_url"}]}, "documents.content[0].type is 'image_url'; allowed: text"),
    ],
)
def test_an_object_without_a_text_is_refused_by_its_place(given: object, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        documents_of(given)
    assert str(caught.value).startswith(message)
