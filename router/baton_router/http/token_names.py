"""Names of tokens in log-probabilities."""

from __future__ import annotations

from baton_router.tokenization import Tokenizer


def token_name(tokenizer: Tokenizer, token_id: int, *, as_id: bool = False) -> str:
    """Return the token's text, or OpenAI's `bytes:\\xe2\\x80` where that is no whole character.

    With `as_id` it is `token_id:17`.
    """
    if as_id:
        return f"token_id:{token_id}"
    content = tokenizer.token_bytes(token_id)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)
