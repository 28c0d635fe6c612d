"""Harvest: durable workflows in plain async Python, on PostgreSQL."""

from harvest.app import Harvest
from harvest.client import StartedItem, StartItem, UpdateHandle, WorkflowHandle
from harvest.definitions.activity import ActivityContext, ActivityDefinition
from harvest.definitions.children import ChildPlacement
from harvest.definitions.options import Retry
from harvest.definitions.workflow import WorkflowDefinition
from harvest.embedding import running
from harvest.errors import (
    ActivityError,
    ActivityTimeoutError,
    ApplicationError,
    ChildWorkflowError,
    ExternalWorkflowError,
    HarvestError,
    PlacementError,
    QueryFailedError,
    ResultTimeoutError,
    SessionBrokenError,
    UpdateFailedError,
    UpdateRejectedError,
    UpdateTimeoutError,
    WorkflowFailedError,
)
from harvest.replay.context import ChildHandle, Session, TimerHandle, Winner, WorkflowContext
from harvest.shards import ShardRouter
from harvest.worker.options import WorkerOptions

__all__ = [
    "ActivityContext",
    "ActivityDefinition",
    "ActivityError",
    "ActivityTimeoutError",
    "ApplicationError",
    "ChildHandle",
    "ChildPlacement",
    "ChildWorkflowError",
    "ExternalWorkflowError",
    "Harvest",
    "HarvestError",
    "PlacementError",
    "QueryFailedError",
    "ResultTimeoutError",
    "Retry",
    "Session",
    "SessionBrokenError",
    "ShardRouter",
    "StartItem",
    "StartedItem",
    "TimerHandle",
    "UpdateFailedError",
    "UpdateHandle",
    "UpdateRejectedError",
    "UpdateTimeoutError",
    "Winner",
    "WorkerOptions",
    "WorkflowContext",
    "WorkflowDefinition",
    "WorkflowFailedError",
    "WorkflowHandle",
    "running",
]
