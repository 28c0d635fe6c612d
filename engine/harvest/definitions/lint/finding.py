"""One place in workflow code that breaks a rule."""

from __future__ import annotations

from msgspec import Struct

from harvest.definitions.lint.rules import Severity


class Finding(Struct, frozen=True, order=True, kw_only=True):
    """Where, in what, and what to do. Lines and columns count from 1.

    `within` is `workflow 'name'`, or the name of a function that takes a workflow's context, with `through helper()`
    where the place is in a function that it calls. `does` is what the code does there: `calls datetime.now()`.
    """

    file: str
    line: int
    column: int
    rule: str
    severity: Severity
    within: str
    does: str
    why: str
    instead: str

    @property
    def message(self) -> str:
        """The whole sentence, without the place."""
        return f"{self.within} {self.does}: {self.why}; {self.instead}"
