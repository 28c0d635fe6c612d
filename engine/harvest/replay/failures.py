"""Exceptions as history keeps them, and back."""

from __future__ import annotations

import traceback
from typing import Final

from harvest.errors import ApplicationError
from harvest.history.data import Failure
from harvest.history.limits import NAME_BYTES

TRACEBACK_CHARACTERS: Final = 16_000
MESSAGE_CHARACTERS: Final = 8_000
CAUSES: Final = 5


def failure_of(error: BaseException, *, depth: int = 0) -> Failure:
    """Type, message and traceback of an exception, with its causes."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    text = "".join(traceback.format_exception(error, chain=False))
    return Failure(
        type=_clean(type_of(error))[:NAME_BYTES],
        message=_clean(_message(error)[:MESSAGE_CHARACTERS]),
        traceback=_clean(text[-TRACEBACK_CHARACTERS:]),
        non_retryable=_says_non_retryable(error),
        cause=failure_of(cause, depth=depth + 1) if cause is not None and depth < CAUSES else None,
    )


def type_of(error: BaseException) -> str:
    """The name that policies and pages know an exception by."""
    return str(error.type) if isinstance(error, ApplicationError) else type(error).__name__


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"<its message cannot be read: {type(broken).__name__}>"


def _says_non_retryable(error: BaseException) -> bool:
    try:
        return bool(getattr(error, "non_retryable", False))
    except Exception:
        return False


def exception_of(failure: Failure | None) -> ApplicationError | None:
    """A recorded failure as the exception that workflow code sees as a cause."""
    if failure is None:
        return None
    error = ApplicationError(failure.message, type=failure.type, non_retryable=failure.non_retryable)
    error.__cause__ = exception_of(failure.cause)
    return error


def _clean(text: str) -> str:
    """Text that UTF-8 can carry."""
    return text.encode("utf-8", "replace").decode()
