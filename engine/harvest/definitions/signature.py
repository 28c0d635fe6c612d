"""The parameters and result of a declared function: their types, JSON Schemas and encoding.

A single parameter is that JSON value, several are an array, none is null (reference 2.1).
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from harvest.errors import DefinitionError, PayloadDecodeError, ResultTypeError
from harvest.history import payload

REQUIRED: Final = inspect.Parameter.empty
Schema = dict[str, Any]


class Parameter(msgspec.Struct, frozen=True):
    """One parameter: name, type, and default (`REQUIRED` where there is none)."""

    name: str
    type: Any
    default: Any = REQUIRED


class Signature:
    """Encodes and decodes the arguments and the result of one function.

    With `takes_one`, a value that is no array is the first of several arguments, and null is none, where the others
    have defaults: whoever sends to a handler does not know its signature.
    """

    def __init__(self, parameters: Sequence[Parameter], result: Any, *, what: str, takes_one: bool = False) -> None:
        self.parameters = tuple(parameters)
        self.result = result
        self.what = what
        self.takes_one = takes_one
        self.required = sum(parameter.default is REQUIRED for parameter in self.parameters)
        self.result_decoder = _decoder(result, f"the result of {what}")
        self._decoders = [_decoder(p.type, f"parameter {p.name!r} of {what}") for p in self.parameters]

    def fill(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Positional values for every parameter, defaults filled in. Raises TypeError as a call would."""
        if not kwargs and len(args) == len(self.parameters):
            return args
        if len(args) > len(self.parameters):
            raise TypeError(f"{self.what} takes {len(self.parameters)} arguments, {len(args)} were given")
        values = list(args)
        for parameter in self.parameters[len(args) :]:
            if parameter.name in kwargs:
                values.append(kwargs[parameter.name])
            elif parameter.default is REQUIRED:
                raise TypeError(f"{self.what} misses its argument {parameter.name!r}")
            else:
                values.append(parameter.default)
        unknown = set(kwargs) - {parameter.name for parameter in self.parameters[len(args) :]}
        if unknown:
            raise TypeError(f"{self.what} has no argument {sorted(unknown)[0]!r}")
        return tuple(values)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The arguments as history keeps them."""
        values = self.fill(args, kwargs)
        if not values:
            return payload.NULL
        return payload.encode(values[0] if len(values) == 1 else values, what=f"the input of {self.what}")

    def decode(self, data: bytes) -> list[Any]:
        """The arguments as the function takes them; raises PayloadDecodeError naming the parameter."""
        if not self.parameters:
            return []
        if len(self.parameters) == 1:
            return [self._decode_one(0, data)]
        if self.takes_one and self.required <= 1 and not data.lstrip().startswith(b"["):
            alone = [] if data == payload.NULL and not self.required else [Raw(data)]
            return [self._decode_one(i, alone[i] if i < len(alone) else None) for i in range(len(self.parameters))]
        try:
            items = msgspec.json.decode(data, type=list[Raw])
        except msgspec.MsgspecError as error:
            raise PayloadDecodeError(f"the input of {self.what} must be an array of arguments: {error}") from error
        if len(items) > len(self.parameters):
            raise PayloadDecodeError(
                f"the input of {self.what} has {len(items)} arguments; it takes {len(self.parameters)}"
            )
        return [self._decode_one(i, items[i] if i < len(items) else None) for i in range(len(self.parameters))]

    def _decode_one(self, index: int, data: bytes | Raw | None) -> Any:
        parameter = self.parameters[index]
        if data is not None:
            try:
                return self._decoders[index].decode(data)
            except Exception as error:  # a type's own __post_init__ may raise anything
                if bytes(data) != payload.NULL or parameter.default is REQUIRED:
                    raise PayloadDecodeError(
                        f"argument {parameter.name!r} of {self.what} does not fit its type: {error}",
                        parameter=parameter.name,
                    ) from error
        if parameter.default is REQUIRED:
            raise PayloadDecodeError(f"{self.what} misses its argument {parameter.name!r}", parameter=parameter.name)
        return parameter.default

    def encode_result(self, value: Any) -> bytes:
        """A result as history keeps it.

        Raises ResultTypeError for one that the declared type cannot be read back from, and PayloadError as `encode`.
        """
        data = payload.encode(value, what=f"the result of {self.what}")
        if self.result is Any:
            return data
        try:
            self.result_decoder.decode(data)
        except Exception as error:  # a type's own __post_init__ may raise anything
            declared, came = _type_name(self.result), _type_name(type(value))
            raise ResultTypeError(
                f"{self.what} is declared to return {declared}, but returned {came}: {error}",
                declared=declared,
                returned=came,
            ) from None
        return data

    def canonical(self, data: bytes) -> bytes:
        """Recorded arguments decoded with today's types and encoded again: equal means harmless evolution."""
        return payload.encode_canonical(self.decode(data))

    def input_schema(self) -> Schema:
        """JSON Schema of the input, with the names of the parameters."""
        names = [parameter.name for parameter in self.parameters]
        if not names:
            return {"type": "null", "x-parameters": names}
        if len(names) == 1:
            schema_of_one = msgspec.json.schema(self.parameters[0].type)
            return {**schema_of_one, **_default(self.parameters[0]), "x-parameters": names}
        schemas, components = msgspec.json.schema_components(
            [parameter.type for parameter in self.parameters], ref_template="#/$defs/{name}"
        )
        schema: Schema = {
            "type": "array",
            "prefixItems": [
                {**schema, **_default(parameter)} for schema, parameter in zip(schemas, self.parameters, strict=True)
            ],
            "minItems": self.required,
            "maxItems": len(names),
            "x-parameters": names,
        }
        if components:
            schema["$defs"] = components
        return schema

    def output_schema(self) -> Schema:
        """JSON Schema of the result."""
        return msgspec.json.schema(self.result)


def signature_of(function: Callable[..., Any], *, skip: int, what: str, takes_one: bool = False) -> Signature:
    """Read a function's signature, leaving out its first `skip` parameters. Raises DefinitionError."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise DefinitionError(f"the annotations of {what} cannot be read: {error}") from error
    parameters = []
    for parameter in list(inspect.signature(function).parameters.values())[skip:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise DefinitionError(f"{what} takes *{parameter.name}; declare each parameter by name instead")
        if parameter.kind is parameter.KEYWORD_ONLY:
            raise DefinitionError(f"parameter {parameter.name!r} of {what} is keyword-only; make it positional")
        parameters.append(Parameter(parameter.name, hints.get(parameter.name, Any), parameter.default))
    return Signature(parameters, hints.get("return", Any), what=what, takes_one=takes_one)


def _type_name(of_type: Any) -> str:
    return "None" if of_type is type(None) else inspect.formatannotation(of_type)


def _default(parameter: Parameter) -> Schema:
    if parameter.default is REQUIRED:
        return {}
    try:
        return {"default": msgspec.to_builtins(parameter.default)}
    except (TypeError, ValueError, RecursionError):
        return {}


def type_schema(of_type: Any, *, what: str) -> Schema:
    """JSON Schema of a type; raises DefinitionError for one that cannot be stored."""
    _decoder(of_type, what)
    return msgspec.json.schema(of_type)


def _decoder(of_type: Any, what: str) -> msgspec.json.Decoder[Any]:
    try:
        msgspec.json.schema(of_type)
        return msgspec.json.Decoder(of_type)
    except (TypeError, RuntimeError) as error:
        raise DefinitionError(
            f"{what} has a type that cannot be stored as JSON ({error}); "
            "use a msgspec.Struct, a dataclass, or plain types"
        ) from error
