"""What can go wrong with an embedded PostgreSQL, each with what to do."""

from __future__ import annotations

from harvest.errors import HarvestError


class EmbeddedPostgresError(HarvestError):
    """An embedded PostgreSQL could not be prepared, started or stopped; the message ends with what its log says."""

    code, slug = "HVT-430", "embedded_postgres"


class DataFolderError(EmbeddedPostgresError):
    """The data folder is not one that this PostgreSQL can open. It was not touched."""

    code, slug = "HVT-431", "data_folder"


class DataFolderBusyError(EmbeddedPostgresError):
    """Another living process of ours runs a server on the data folder."""

    code, slug = "HVT-432", "data_folder_busy"
