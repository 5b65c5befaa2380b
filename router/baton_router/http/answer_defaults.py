"""Fills into requests what the operator has set for those that do not say it themselves."""

from __future__ import annotations

from baton_router.http.sampling_fields import RequestFields, StreamOptions
from baton_router.process.answer_settings import AnswerSettings


def fill_in(body: RequestFields, answers: AnswerSettings) -> None:
    """Mutate the body."""
    if answers.names_token_ids and body.return_tokens_as_token_ids is None:
        body.return_tokens_as_token_ids = True
    if answers.includes_usage and body.stream:
        body.stream_options = body.stream_options or StreamOptions()
        body.stream_options.include_usage = True
