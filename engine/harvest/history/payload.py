"""User values as exact bytes: strict UTF-8 JSON, refused when encoded rather than when committed (design 3)."""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import Any, Final

import msgspec

from harvest.errors import PayloadDecodeError, PayloadError, PayloadTooLargeError
from harvest.history.limits import NESTING, PAYLOAD_BYTES

CODEC_JSON: Final = 1
NULL: Final = b"null"

_encoder = msgspec.json.Encoder()
_canonical = msgspec.json.Encoder(order="deterministic")
_skipping = msgspec.json.Decoder(msgspec.Raw)
_packer = msgspec.msgpack.Encoder()
_non_finite = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
_awaitable = re.compile(r"\bof type (coroutine|_asyncio\.Task|[\w.]*Future) ")
_finite = json.JSONEncoder(allow_nan=False, check_circular=False, skipkeys=True, default=lambda _: None)
_TO_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b'[]{}"'))


def encode(value: Any, *, what: str = "payload") -> bytes:
    """Encode `value` as the bytes that history keeps.

    Raises PayloadError for what strict JSON cannot hold (NaN, infinities, lone surrogates, too deep nesting,
    unsupported types) and PayloadTooLargeError above the limit.
    """
    try:
        data = _encoder.encode(value)
    except UnicodeEncodeError:
        raise PayloadError(f"{what} holds a lone surrogate, which UTF-8 cannot carry", problem="surrogate") from None
    except RecursionError:
        raise PayloadError(f"{what} is nested deeper than {NESTING} levels", problem="nesting") from None
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        missing = " (is an `await` missing?)" if _awaitable.search(str(error)) else ""
        raise PayloadError(f"{what} cannot be written as JSON: {error}{missing}", problem="type") from error
    # msgspec writes NaN and infinities as null, and as text where they are keys: only such output can hold one.
    if NULL in data or b'nan":' in data or b'inf":' in data:
        _refuse_non_finite(value, what)
    check(data, what=what)
    try:
        _skipping.decode(data)
        if not data.isascii():
            data.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PayloadError(f"{what} holds a msgspec.Raw that is not JSON: {error}", problem="syntax") from None
    return data


def encode_canonical(value: Any) -> bytes:
    """Encode with sets and keys sorted: for comparing values, never for storing them."""
    return _canonical.encode(value)


def check(data: bytes, *, what: str = "payload") -> bytes:
    """Return encoded `data` if its size and depth are within the limits."""
    if len(data) > PAYLOAD_BYTES:
        raise PayloadTooLargeError(
            f"{what} has {len(data):,} bytes; at most {PAYLOAD_BYTES:,} are allowed: keep large data elsewhere "
            "and pass a reference",
            size=len(data),
            limit=PAYLOAD_BYTES,
        )
    if data.count(b"[") + data.count(b"{") > NESTING and _too_deep(data):
        raise PayloadError(f"{what} is nested deeper than {NESTING} levels", problem="nesting")
    return data


def check_text(data: bytes, *, what: str = "payload") -> bytes:
    """Check JSON text that came from outside and return it unchanged; raises PayloadError naming the fault."""
    check(data, what=what)
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
        msgspec.json.decode(data)
    except UnicodeDecodeError as error:
        raise PayloadError(f"{what} is not UTF-8: {error}", problem="encoding") from None
    except RecursionError:
        raise PayloadError(f"{what} is nested deeper than {NESTING} levels", problem="nesting") from None
    except msgspec.DecodeError as error:
        raise PayloadError(f"{what} is not JSON: {error}", problem="syntax") from None
    return data


def decode(data: bytes, as_type: Any = Any, *, what: str = "payload") -> Any:
    """Decode recorded bytes as `as_type`; raises PayloadDecodeError."""
    try:
        return msgspec.json.decode(data, type=as_type)
    except Exception as error:  # a type's own __post_init__ may raise anything
        raise PayloadDecodeError(f"{what} does not fit the declared type: {error}") from error


def digest(data: bytes) -> str:
    """Eight bytes of BLAKE2 over encoded arguments, as hex: what a command is matched by."""
    return blake2b(data, digest_size=8).hexdigest()


def _refuse_non_finite(value: Any, what: str) -> None:
    """Refuse the numbers that JSON has no word for. MessagePack writes them, behind bytes that can be searched for."""
    try:
        if _non_finite.search(_packer.encode(value)) is None:
            return
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        pass  # such as an integer above 64 bits
    try:
        _finite.encode(msgspec.to_builtins(value, enc_hook=lambda _: None))
    except ValueError:
        message = f"{what} holds NaN or an infinity, which JSON has no word for"
        raise PayloadError(message, problem="non_finite") from None
    except RecursionError:
        raise PayloadError(f"{what} is nested deeper than {NESTING} levels", problem="nesting") from None


def _too_deep(data: bytes) -> bool:
    """Whether brackets outside strings nest deeper than the limit, in JSON text."""
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(unescaped.translate(_TO_BRACKETS, _NOT_BRACKETS).split(b'"')[::2])
    for _ in range(NESTING):
        # Each time the innermost level goes.
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True
