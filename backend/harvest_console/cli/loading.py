"""Importing a user's application in the working folder, with errors that the author can read."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from harvest.definitions.registry import Registry

_USAGE_ERROR = 2


def load_app(app: str, *, quiet: bool = False) -> Registry:
    """Import APP, written `module:attribute`; the working folder is on the path.

    What is wrong is the author's to see whole: it is printed, unless `quiet`, and the process ends with status 2.
    """
    from harvest.errors import HarvestError
    from harvest.worker.main import load_registry

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = app.partition(":")[0]
    try:
        importlib.import_module(module or "harvest")
        return load_registry(app)
    except Exception as error:
        if quiet:
            sys.exit(_USAGE_ERROR)
        if isinstance(error, HarvestError):
            _refuse(f"{error.message} [{error.code}]{_place(error)}")
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            _refuse(f"there is no module {error.name!r} for {app!r}; write module:attribute, found from {os.getcwd()}")
        traceback.print_exc()
        _refuse(f"the module of {app!r} raised {type(error).__name__} while it was imported")


def _place(error: Exception) -> str:
    """Where in the author's code an error of a definition arose; empty when it was in none."""
    engine = os.path.dirname(importlib.import_module("harvest").__file__ or "")
    frames = traceback.extract_tb(error.__traceback__)
    ours = (engine, os.path.dirname(__file__), "<frozen", os.path.dirname(os.__file__))
    theirs = [frame for frame in frames if not frame.filename.startswith(ours)]
    return f", at {theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""


def _refuse(message: str) -> NoReturn:
    click.echo(f"harvest: {message}", err=True)
    sys.exit(_USAGE_ERROR)


def pin_hash_seed() -> None:
    """Start again with PYTHONHASHSEED=0 unless it is set so: sets of strings must iterate alike in every worker."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
