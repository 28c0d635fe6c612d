"""docs/errors.md says what the error tree says."""

from __future__ import annotations

from harvest.errors import LimitError
from tools import errors_doc


def test_the_page_is_the_tree() -> None:
    assert errors_doc.PAGE.read_text() == errors_doc.page(), "run python tools/errors_doc.py"


def test_every_error_has_a_code_a_slug_and_a_text_of_its_own() -> None:
    errors = list(errors_doc.declared())
    assert len(errors) > 35
    assert errors_doc.problems(errors) == []


def test_a_code_that_is_not_ones_own_is_found() -> None:
    class Copied(LimitError):
        """Has the code of its parent."""

    assert len(errors_doc.problems([LimitError, Copied])) == 2
