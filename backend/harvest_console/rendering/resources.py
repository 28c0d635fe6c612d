"""Where templates and static files are: beside the package in a wheel, in the checkout otherwise (answers 17)."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
CHECKOUT = PACKAGE.parent.parent


def resource_folder(name: str) -> Path:
    """The folder `templates` or `static`."""
    packaged = PACKAGE / name
    return packaged if packaged.is_dir() else CHECKOUT / name
