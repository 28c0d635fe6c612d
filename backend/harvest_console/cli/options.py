"""Options that several verbs share."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from harvest_console.settings import DEFAULT_PORT
from harvest_console.tokens import DEFAULT_DATA_DIR

F = TypeVar("F", bound=Callable[..., Any])


def data_dir_option(function: F) -> F:
    """`--data-dir`, for every verb that looks for databases."""
    return click.option(
        "--data-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=DEFAULT_DATA_DIR,
        show_default=True,
        help="Where the development setup keeps its databases and keys.",
    )(function)


def address_options(function: F) -> F:
    """`--host` and `--port`, for the verbs that serve the console."""
    host = click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
    port = click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=DEFAULT_PORT,
        show_default=True,
        help="Port to listen on; 0 takes a free one.",
    )
    return host(port(function))


def set_up_logging() -> None:
    """Log to standard error, at HARVEST_LOG_LEVEL (default: info)."""
    level = os.environ.get("HARVEST_LOG_LEVEL", "info").upper()
    logging.basicConfig(
        level=level if level in logging.getLevelNamesMapping() else "INFO",
        format=f"%(asctime)s %(levelname)-7s [{os.getpid()}] %(name)s: %(message)s",
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
