"""What no template may hold, and what the vendored files must be (console 5.7)."""

from __future__ import annotations

import base64
import re
from hashlib import sha384

import pytest

from harvest_console.rendering.assets import ASSETS
from harvest_console.rendering.environment import ENVIRONMENT
from harvest_console.rendering.resources import resource_folder

TEMPLATES = sorted(resource_folder("templates").rglob("*.html"))
STATIC = resource_folder("static")
FORBIDDEN = ("|safe", "| safe", "Markup(", "hx-on", "js:", "autoescape", "style=", "onclick", "<style", "javascript:")
OWN_SCRIPT_BYTES = 16_000


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.name))
def test_nothing_goes_round_the_escaping_or_the_policy(path: object) -> None:
    text = path.read_text()  # type: ignore[attr-defined]
    assert [word for word in FORBIDDEN if word in text] == []
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.name))
def test_every_template_compiles(path: object) -> None:
    ENVIRONMENT.get_template(str(path.relative_to(resource_folder("templates"))))  # type: ignore[attr-defined]


def test_own_scripts_stay_small() -> None:
    assert sum(path.stat().st_size for path in STATIC.glob("*.js")) < OWN_SCRIPT_BYTES


def test_vendored_files_are_those_of_the_table() -> None:
    table = dict(re.findall(r"\| `(\S+\.js)` \| `\S+` \| `(\S+)` \|", (STATIC / "vendor" / "VENDORED.md").read_text()))
    found = {
        path.name: base64.b64encode(sha384(path.read_bytes()).digest()).decode()
        for path in (STATIC / "vendor").glob("*.js")
    }
    assert found == table
    assert len(table) == 3


def test_every_class_of_the_stylesheet_is_used() -> None:
    css = re.sub(r"url\(\"[^\"]*\"\)|/\*.*?\*/", "", (STATIC / "app.css").read_text(), flags=re.S)
    classes = set(re.findall(r"\.([a-z][a-z0-9_-]*)", css))
    used = "\n".join(path.read_text() for path in [*TEMPLATES, *STATIC.glob("*.js")])
    used += (resource_folder("static").parent / "backend/harvest_console/rendering/states.py").read_text()
    assert sorted(name for name in classes if not re.search(rf"\b{re.escape(name)}\b", used)) == []


def test_a_static_file_is_found_by_its_digest_alone() -> None:
    _, _, digest, name = ASSETS.path("app.css").split("/")
    found = ASSETS.content(digest, name)
    assert found is not None
    assert found[1] == "text/css; charset=utf-8"
    assert ASSETS.content("0" * 16, name) is None
    assert ASSETS.content(digest, "../app.css") is None
