"""Write docs/lint.md from the rules of `harvest lint`: `python tools/lint_doc.py`."""

from __future__ import annotations

from pathlib import Path

from harvest.definitions.lint import RULES

PAGE = Path(__file__).parent.parent / "docs" / "lint.md"
INTRODUCTION = """\
# The determinism rules

Made from the code by `python tools/lint_doc.py`; a test holds the two equal.

A workflow's code runs again, from the top, whenever its history is replayed: after a deploy, after a crash, or when it
was put out of memory. It must then do the same. `harvest lint` reads the source for what would not, and says what to
use instead:

```
$ harvest lint shop
shop/flows.py:41:15: error HVG001 workflow 'order_flow', through due(), calls datetime.now(): a replay would see
another time; use ctx.now()
1 error and 0 warnings in 3 workflows of 2 files
```

It takes files, folders and modules (`shop/flows.py`, `shop`, `shop.flows`, `shop.flows:app`), runs and imports none of
them, and ends with status 1 when it found something: put it beside your other linters. `--format json` is for tools.

What is read: functions declared with `@app.workflow`, functions that take a `WorkflowContext`, and the functions of the
same module that they call. Activities are not: they may do as they like. What is handed to `ctx.side_effect`, or runs
as a local activity, is not either.

## Errors and warnings

An **error** is never right in a workflow: it is also refused when the module is imported, with a `DefinitionError`
(HVT-100) that names file and line. A **warning** may be right where you know why; at import it is one line in the log.
The table says what most findings of a rule are; one that may be right, such as asking whether a file exists, only
warns.

"""
OPTING_OUT = """
## Where you know better

```python
limit = int(os.environ["LIMIT"])  # harvest: allow HVG003
```

allows a rule on that line; several are written `allow HVG003, HVG007`.
`@app.workflow(allow_nondeterministic_apis=True)` takes a whole workflow out. Neither changes what a running workflow
may do: the guard still refuses I/O, clocks and chance there.
"""


def page() -> str:
    """The whole page."""
    lines = ["| rule | about | severity | found | why | instead |", "| --- " * 6 + "|"]
    for rule in RULES.values():
        cells = (rule.code, rule.title, rule.severity, rule.finds, rule.why, rule.instead)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return INTRODUCTION + "\n".join(lines) + "\n" + OPTING_OUT


if __name__ == "__main__":
    PAGE.write_text(page())
