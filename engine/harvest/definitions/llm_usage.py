"""What an activity reports of a call to a language model, and what cannot be reported."""

from __future__ import annotations

import math
import operator
from typing import Any, Final

from msgspec import Struct

from harvest.errors import InvalidRequestError
from harvest.history.limits import check_text

MOST_REPORTS: Final = 10_000
# Sums of millions of reports still fit into 64 bits.
MOST_COUNT: Final = 10**12


class LlmUsage(Struct, frozen=True):
    """One call of a language model. The cost is in millionths of a US dollar, None where nobody knows it."""

    model: str
    input_tokens: int
    output_tokens: int
    cost_usd_micros: int | None
    latency_ms: int


def llm_usage(
    *, model: str, input_tokens: int, output_tokens: int, cost_usd_micros: int | None, latency_ms: float
) -> LlmUsage:
    """Check a report. Raises InvalidRequestError, and LimitError for the name of a model that cannot be kept."""
    if not isinstance(model, str):
        raise InvalidRequestError(f"model is a {type(model).__name__}; it must be the model's name", field="model")
    return LlmUsage(
        check_text(model, what="model"),
        _count("input_tokens", input_tokens),
        _count("output_tokens", output_tokens),
        None if cost_usd_micros is None else _count("cost_usd_micros", cost_usd_micros),
        _count("latency_ms", _rounded(latency_ms)),
    )


def _rounded(value: Any) -> Any:
    """Milliseconds as people measure them have parts."""
    return round(value) if isinstance(value, float) and math.isfinite(value) else value


def _count(field: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or not 0 <= number <= MOST_COUNT:
        raise InvalidRequestError(
            f"{field} is {str(value)[:40]!r}; it must be a whole number from 0 to {MOST_COUNT:,}", field=field
        )
    return number
