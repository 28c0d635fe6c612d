"""Harvest: durable workflows in plain async Python, on PostgreSQL."""

from harvest.app import Harvest
from harvest.client import WorkflowHandle
from harvest.definitions.activity import ActivityContext, ActivityDefinition
from harvest.definitions.options import Retry
from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import (
    ActivityError,
    ActivityTimeoutError,
    ApplicationError,
    HarvestError,
    ResultTimeoutError,
    WorkflowFailedError,
)
from harvest.replay.context import WorkflowContext

__all__ = [
    "ActivityContext",
    "ActivityDefinition",
    "ActivityError",
    "ActivityTimeoutError",
    "ApplicationError",
    "Harvest",
    "HarvestError",
    "ResultTimeoutError",
    "Retry",
    "WorkflowContext",
    "WorkflowDefinition",
    "WorkflowFailedError",
    "WorkflowHandle",
]
