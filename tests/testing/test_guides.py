"""The examples of the guides do what the guides say."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def _module(name: str) -> ModuleType:
    """A module of a guide's Python blocks, in their order."""
    text = (GUIDES / f"{name}.md").read_text()
    module = ModuleType(f"guide_{name.replace('-', '_')}")
    sys.modules[module.__name__] = module
    source = "\n\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    exec(compile(source, str(GUIDES / f"{name}.md"), "exec"), module.__dict__)
    return module


def _tests(name: str) -> list[Any]:
    found = inspect.getmembers(_module(name), inspect.iscoroutinefunction)
    return [pytest.param(function, id=f"{name}: {test}") for test, function in found if test.startswith("test_")]


@pytest.mark.parametrize("function", [*_tests("testing"), *_tests("changing-code")])
async def test_an_example(function: Any) -> None:
    await function()


def test_the_guides_have_examples() -> None:
    assert len(_tests("testing")) >= 6
    assert len(_tests("changing-code")) == 1
