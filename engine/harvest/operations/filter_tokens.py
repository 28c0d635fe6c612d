"""The words of the filter language, each with its column, and what a word means by itself."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Final, Literal

from msgspec import Struct

from harvest.errors import FilterError

AGO_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
LONGEST_AGO: Final = 36_500 * AGO_UNITS["d"]
# What PostgreSQL's numeric keeps is wider on both sides.
NUMBER_DIGITS: Final = 16_000
_DIGITS: Final = frozenset("0123456789")
_OPERATORS: Final = ("<=", ">=", "!=", "<>", "=", "<", ">")

Kind = Literal["word", "attribute", "text", "number", "ago", "operator", "opening", "closing", "comma", "end"]
_MARKS: Final[dict[str, Kind]] = {"(": "opening", ")": "closing", ",": "comma"}


class Token(Struct, frozen=True):
    """One word: what it is, its text (of an attribute the key, of an ago the seconds), and where it begins, from 1."""

    kind: Kind
    text: str
    column: int

    @property
    def shown(self) -> str:
        """The word as messages name it."""
        return "the end" if self.kind == "end" else repr(self.text[:40])

    def is_word(self, word: str) -> bool:
        """Whether this is a keyword, in upper or lower case."""
        return self.kind == "word" and self.text.upper() == word


def refusal(message: str, *, column: int, remedy: str, field: str = "filter") -> FilterError:
    """The error of what stands at a column, from 1."""
    return FilterError(f"column {column}: {message}; {remedy}", field=field, column=column, remedy=remedy)


def tokens_of(text: str) -> list[Token]:
    """The words of a filter, the last of them its end. Raises FilterError."""
    found = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        token, at = _token(text, at)
        found.append(token)
    return [*found, Token("end", "", len(text) + 1)]


def _token(text: str, at: int) -> tuple[Token, int]:
    character, column = text[at], at + 1
    if character in _MARKS:
        return Token(_MARKS[character], character, column), at + 1
    for operator in _OPERATORS:
        if text.startswith(operator, at):
            return Token("operator", operator, column), at + len(operator)
    if character in "'\"":
        value, end = quoted(text, at)
        return Token("text", value, column), end
    if character in _DIGITS or character in "+-":
        return _number_or_ago(text, at)
    if _in_word(character):
        return _word(text, at)
    raise refusal(f"{character!r} means nothing here", column=column, remedy="put texts in quotes, like 'a b'")


def quoted(text: str, at: int, *, closed: bool = True, field: str = "filter") -> tuple[str, int]:
    """What stands in quotes from `at` on, and where it ends. A quote inside is written twice.

    Raises FilterError where the quote is not closed; with `closed=False` the end is then -1.
    """
    quote, parts, start = text[at], [], at + 1
    while True:
        end = text.find(quote, start)
        if end < 0 and not closed:
            return "", -1
        if end < 0:
            raise refusal("the quote is not closed", column=at + 1, remedy=f"end the text with {quote}", field=field)
        parts.append(text[start:end])
        if not text.startswith(quote, end + 1):
            return quote.join(parts), end + 1
        start = end + 2


def _word(text: str, at: int) -> tuple[Token, int]:
    end = _word_end(text, at)
    word, column = text[at:end], at + 1
    for prefix in ("attrs.", "attr."):
        if word == prefix and text[end : end + 1] in ("'", '"'):
            key, end = quoted(text, end)
            return Token("attribute", key, column), end
        if word.startswith(prefix):
            if word == prefix:
                raise refusal(
                    "the key of the attribute is missing", column=column, remedy='write attrs.key or attrs."a key"'
                )
            return Token("attribute", word[len(prefix) :], column), end
    if word.lower().startswith("now-"):
        return Token("word", word[:3], column), at + 3
    return Token("word", word, column), end


def _in_word(character: str) -> bool:
    return character.isalnum() or character in "_-."


def _word_end(text: str, at: int) -> int:
    while at < len(text) and _in_word(text[at]):
        at += 1
    return at


def is_bare_key(key: str) -> bool:
    """Whether an attribute's key needs no quotes."""
    return bool(key) and all(map(_in_word, key))


def _number_or_ago(text: str, at: int) -> tuple[Token, int]:
    sign = text[at] if text[at] in "+-" else ""
    start = at + len(sign)
    while sign and text[start : start + 1].isspace():
        start += 1
    end = start
    while end < len(text) and (_in_word(text[end]) or (text[end] in "+" and text[end - 1] in "eE")):
        end += 1
    word, column = text[start:end], at + 1
    seconds = _seconds(word) if sign == "-" else None
    if seconds is not None:
        if seconds > LONGEST_AGO:
            raise refusal(f"-{word[:20]} is too long ago", column=column, remedy="go back 36500d at most")
        return Token("ago", str(seconds), column), end
    if number_of(word) is None:
        raise refusal(
            f"{sign + word!r} is no number",
            column=column,
            remedy="write numbers like 5, -0.25 or 1e6, times like '2026-05-01T10:00:00Z' or -24h, and texts in quotes",
        )
    return Token("number", sign + word, column), end


def _seconds(word: str) -> int | None:
    digits, unit = word[:-1], word[-1:]
    if unit not in AGO_UNITS or not digits or len(digits) > 12 or not _DIGITS.issuperset(digits):
        return None
    return int(digits) * AGO_UNITS[unit]


def number_of(text: str) -> Decimal | None:
    """The number that a text is, written as JSON writes numbers (a leading + is allowed); None if it is none."""
    whole, exponent = _split(_unsigned(text), "eE")
    digits, fraction = _split(whole, ".")
    if exponent is not None and not _is_digits(_unsigned(exponent)):
        return None
    if not _is_digits(digits) or (fraction is not None and not _is_digits(fraction)):
        return None
    if len(digits) > 1 and digits.startswith("0"):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond all bounds
        return Decimal("Infinity")


def is_kept_exactly(number: Decimal) -> bool:
    """Whether PostgreSQL's numeric can hold a number."""
    return number.is_finite() and all(
        abs(power) <= NUMBER_DIGITS for power in (number.adjusted(), int(number.as_tuple().exponent))
    )


def _unsigned(text: str) -> str:
    return text[1:] if text[:1] in ("+", "-") else text


def _split(text: str, at_any: str) -> tuple[str, str | None]:
    for place, character in enumerate(text):
        if character in at_any:
            return text[:place], text[place + 1 :]
    return text, None


def _is_digits(text: str) -> bool:
    return bool(text) and _DIGITS.issuperset(text)
