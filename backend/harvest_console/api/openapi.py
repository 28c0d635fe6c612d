"""The OpenAPI 3.1 document, made from the routes and the very structs that read and write their bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any, Final

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from harvest.errors import HarvestError, InvalidRequestError, PayloadTooLargeError, UnauthenticatedError
from harvest_console.api.answers import JSON, AnyRequest
from harvest_console.api.doc import Doc
from harvest_console.auth.caller import settings_of
from harvest_console.auth.errors import CrossSiteError
from harvest_console.problems import MEDIA_TYPE, Problem

Schema = dict[str, Any]
_PARAMETER = re.compile(r"\{(\w+):\w+\}")
_PATH_SCHEMAS: Final[dict[str, Schema]] = {
    "execution_id": {"type": "string", "format": "uuid"},
    "event_id": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    "worker_id": {"type": "string", "format": "uuid"},
    "view_id": {"type": "string", "format": "uuid"},
    "receipt": {"type": "string", "format": "uuid"},
    "shard_id": {"type": "integer", "minimum": 0, "maximum": 65_535},
    "partition": {"type": "integer", "minimum": 0, "maximum": 511},
    "name": {"type": "string", "enum": ["input", "result", "memo", "current_details"]},
}
_KEY_HEADER: Final[Schema] = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Repeating a request with its key does it once; one is minted when none is sent.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
_EVENTS: Final[Schema] = {
    "description": "Server-sent events, until the connection is closed.",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}
_SECURITY: Final[Schema] = {
    "HarvestBearerToken": {"type": "http", "scheme": "bearer"},
    "HarvestSessionCookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": "harvest_session",
        "description": "A console session. Changing requests also carry the session's token in X-CSRF-Token.",
    },
}


def document(handlers: Iterable[HTTPRouteHandler], root: str, base_path: str) -> Schema:
    """Describe every handler that has a `Doc`; paths are below `root`, the server's address is `base_path`."""
    documented = [handler for handler in handlers if "doc" in handler.opt]
    structs = sorted(_structs(handler.opt["doc"] for handler in documented), key=lambda struct: struct.__name__)
    _, schemas = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    paths: Schema = {}
    for handler in documented:
        for path in sorted(handler.paths):
            full = path if path.startswith(root) or path == "/health" else root + path
            methods = paths.setdefault(_PARAMETER.sub(r"{\1}", full), {})
            for method in sorted(handler.http_methods):
                methods[method.lower()] = _operation(handler, path, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Harvest management API", "version": version("harvest-workflows")},
        "servers": [{"url": base_path or "/"}],
        "security": [{name: []} for name in _SECURITY],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _SECURITY},
    }


def _structs(docs: Iterable[Doc]) -> set[type[Struct]]:
    found: set[type[Struct]] = {Problem}
    for doc in docs:
        found |= {struct for struct in (doc.query, doc.body, *doc.answers.values()) if struct is not None}
    return found


def _operation(handler: HTTPRouteHandler, path: str, schemas: Schema) -> Schema:
    doc: Doc = handler.opt["doc"]
    public = bool(handler.opt.get("public"))
    operation: Schema = {
        "operationId": handler.handler_name if len(handler.paths) == 1 else f"{handler.handler_name}{_suffix(path)}",
        "summary": doc.summary,
        "description": (handler.fn.__doc__ or "").strip(),
        "tags": [doc.tag],
        "parameters": [*_path_parameters(path), *_query_parameters(doc, schemas)],
        "responses": {str(status): _answer(status, struct) for status, struct in doc.answers.items()},
        "x-harvest-read-only": handler.http_methods == {"GET"},
    }
    if public:
        operation["security"] = []
    if doc.keyed:
        operation["parameters"].append(_KEY_HEADER)
    if doc.stream:
        operation["responses"]["200"] = _EVENTS
    if doc.body is not None:
        operation["requestBody"] = {"content": {JSON: {"schema": _reference(doc.body)}}}
    elif doc.any_body:
        operation["requestBody"] = {"content": {JSON: {"schema": {}}}, "description": "Any JSON value; empty is null."}
    operation["responses"] |= _refusals(doc, public)
    return operation


def _suffix(path: str) -> str:
    return re.sub(r"\W+", "_", path).rstrip("_")


def _path_parameters(path: str) -> Iterator[Schema]:
    for name in _PARAMETER.findall(path):
        schema = _PATH_SCHEMAS.get(name, {"type": "string", "minLength": 1})
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameters(doc: Doc, schemas: Schema) -> Iterator[Schema]:
    if doc.query is None:
        return
    schema = schemas[doc.query.__name__]
    for name, field in schema.get("properties", {}).items():
        yield {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "schema": _without_null(field),
        }


def _without_null(field: Schema) -> Schema:
    """A query cannot say null: a parameter that may be None may be left out."""
    kept = {name: value for name, value in field.items() if not (name == "default" and value is None)}
    choices = [choice for choice in kept.pop("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        return {**choices[0], **kept}
    return {**kept, "anyOf": choices} if choices else kept


def _answer(status: int, struct: type[Struct] | None) -> Schema:
    if status == 204:
        return {"description": "Not yet: ask again after the seconds in Retry-After."}
    if struct is None:
        return {
            "description": "The stored bytes.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    about = (struct.__doc__ or struct.__name__).strip().splitlines()[0]
    return {"description": about, "content": {JSON: {"schema": _reference(struct)}}}


def _refusals(doc: Doc, public: bool) -> Schema:
    """What may be answered instead, by status; every other refusal has the same shape."""
    kinds: list[type[HarvestError]] = [*doc.refusals]
    if not public:
        kinds.append(UnauthenticatedError)
    if doc.query is not None or doc.body is not None or doc.any_body:
        kinds.append(InvalidRequestError)
    if doc.body is not None or doc.any_body:
        kinds += [CrossSiteError, PayloadTooLargeError]
    by_status: dict[str, list[str]] = {}
    for kind in kinds:
        by_status.setdefault(str(kind.status), []).append(f"{kind.code} {kind.slug}")
    content = {MEDIA_TYPE: {"schema": _reference(Problem)}}
    known = {
        status: {"description": ", ".join(dict.fromkeys(names)), "content": content}
        for status, names in sorted(by_status.items())
    }
    return known | {"default": {"description": "Any other refusal.", "content": content}}


def _reference(struct: type[Struct]) -> Schema:
    return {"$ref": f"#/components/schemas/{struct.__name__}"}


def openapi_route(handlers: Iterable[HTTPRouteHandler], root: str) -> HTTPRouteHandler:
    """The route that serves the document."""
    documented = tuple(handlers)

    @get("/openapi.json", opt={"public": True}, include_in_schema=False)
    async def openapi(request: AnyRequest) -> Response[bytes]:
        """The document, for the base path that this console is served under."""
        content = document(documented, root, settings_of(request).base_path)
        return Response(msgspec.json.encode(content), media_type=JSON)

    return openapi
