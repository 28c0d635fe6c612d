"""The command `harvest`. A verb's module is imported when the verb is used, so that `--help` answers at once."""

from harvest_console.cli.root import main

__all__ = ["main"]
