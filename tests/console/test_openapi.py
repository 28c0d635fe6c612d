"""The OpenAPI document: every route is in it, and what the console really answers fits it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator

from harvest.history.ids import mint_execution_id
from harvest.history.states import State
from harvest.shards import Shards
from harvest_console.api import routers
from tests.console.conftest import API, Client
from tests.operations.population import Run, add, add_events, started

Document = dict[str, Any]


@pytest.fixture
async def document(console: Client) -> Document:
    response = await console("GET", f"{API}/openapi.json")
    assert response.status_code == 200
    content: Document = response.json()
    return content


def validator(document: Document, schema: Document) -> Validator:
    """A validator that finds the document's components."""
    return Draft202012Validator({**schema, "components": document["components"]})


def references(node: object) -> list[str]:
    """Every reference below a node."""
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [each for child in node.values() for each in references(child)]
    if isinstance(node, list):
        return [each for child in node for each in references(child)]
    return []


async def test_every_route_is_described_and_every_reference_leads_somewhere(
    console: Client, document: Document
) -> None:
    assert routers
    missing = []
    for route in console.inner.app.routes:
        for handler in getattr(route, "route_handlers", []):
            shown = route.path_format.replace(":str", "")
            if not handler.resolve_include_in_schema() or not shown.startswith((API, "/health")):
                continue
            missing += [
                shown for method in handler.http_methods if method.lower() not in document["paths"].get(shown, {})
            ]
    assert missing == []
    assert len(document["paths"]) > 15
    for reference in set(references(document)):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


async def test_operation_ids_are_unique_and_refusals_are_problems(document: Document) -> None:
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(set(ids)) == len(ids)
    for operation in operations:
        for status, answer in operation["responses"].items():
            if status == "default" or int(status) >= 400:
                assert list(answer["content"]) == ["application/problem+json"]


async def test_bodies_are_closed_and_bounds_are_told(document: Document) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["StartBody"]["additionalProperties"] is False
    assert schemas["ReasonBody"]["additionalProperties"] is False
    parameters = {each["name"]: each for each in document["paths"][f"{API}/workflows"]["get"]["parameters"]}
    assert parameters["page_size"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}
    assert parameters["workflow_name"]["schema"]["maxLength"] == 255
    assert parameters["started_after"]["schema"]["format"] == "date-time"


async def test_answers_fit_what_is_said_of_them(console: Client, shards: Shards, document: Document) -> None:
    failure = b'{"type":"Declined","message":"no funds","cause":{"type":"E","message":"m"}}'
    done = await add(shards, 0, Run(workflow_id="a", state=State.FAILED, failure=failure, input=b"[1]"))
    large = await add(shards, 1, Run(workflow_id="b", input=b'"' + b"x" * 100_000 + b'"', blocked="step_too_long"))
    await add_events(shards, large, [started(b'"' + b"x" * 100_000 + b'"')])
    requests = [
        ("GET", "/workflows", {}),
        ("GET", "/workflows/count", {}),
        ("GET", "/workflows/registered", {}),
        ("GET", "/workflows/registered/{workflow_name}/schema", {"workflow_name": "order_flow"}),
        ("GET", "/workflows/{execution_id}", {"execution_id": str(done)}),
        ("GET", "/workflows/{execution_id}", {"execution_id": str(large)}),
        ("GET", "/workflows/{execution_id}", {"execution_id": str(mint_execution_id(0))}),
        ("GET", "/workflows/{execution_id}", {"execution_id": "wrong"}),
        ("GET", "/workflows/{execution_id}/history", {"execution_id": str(large)}),
        ("GET", "/workflows/{execution_id}/result", {"execution_id": str(done)}),
        ("GET", "/workflows/{execution_id}/result", {"execution_id": str(large)}),
        ("GET", "/workflows/by-id/{workflow_name}/{workflow_id}", {"workflow_name": "order_flow", "workflow_id": "a"}),
        ("POST", "/workflows/{workflow_name}/start", {"workflow_name": "any_flow"}),
        ("POST", "/workflows/{execution_id}/signal/{signal_name}", {"execution_id": str(large), "signal_name": "go"}),
        ("POST", "/workflows/{execution_id}/cancel", {"execution_id": str(large)}),
        ("POST", "/workflows/{execution_id}/terminate", {"execution_id": str(large)}),
        ("POST", "/workflows/{execution_id}/terminate", {"execution_id": str(done)}),
        ("GET", "/admin/audit", {}),
        ("GET", "/health", {}),
    ]
    for method, template, values in requests:
        path = template.format(**{name: quote(value, safe="") for name, value in values.items()})
        response = await console.api(method, path)
        described = document["paths"][API + template][method.lower()]["responses"]
        answer = described.get(str(response.status_code), described["default"])
        if response.status_code == 204:
            continue
        schema = answer["content"][response.headers["content-type"]]["schema"]
        validator(document, schema).validate(response.json())
