"""The workflows and activities of one application, by name."""

from __future__ import annotations

from typing import Any

from harvest.definitions.activity import ActivityDefinition
from harvest.definitions.built_in import BUILT_IN
from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import DefinitionError


class Registry:
    """Names are unique: an activity by name, a workflow by name and version.

    `workflows` are those that were declared; what the engine brings along is found by its name alone.
    """

    def __init__(self) -> None:
        self.activities: dict[str, ActivityDefinition[..., Any]] = {}
        self.workflows: dict[tuple[str, int], WorkflowDefinition[..., Any]] = {}
        self._latest: dict[str, WorkflowDefinition[..., Any]] = {}

    def add_activity(self, activity: ActivityDefinition[..., Any]) -> None:
        """Register an activity; raises DefinitionError for a name that is taken."""
        if activity.name in self.activities:
            raise DefinitionError(f"activity {activity.name!r} is declared twice; give one of them another name")
        self.activities[activity.name] = activity

    def add_workflow(self, workflow: WorkflowDefinition[..., Any]) -> None:
        """Register a workflow; raises DefinitionError for a name and version that are taken."""
        key = (workflow.name, workflow.version)
        if key in BUILT_IN:
            raise DefinitionError(f"workflow {workflow.name!r} is part of the engine; give yours another name")
        if key in self.workflows:
            raise DefinitionError(
                f"workflow {workflow.name!r} version {workflow.version} is declared twice; "
                "give one of them another name or version"
            )
        self.workflows[key] = workflow
        latest = self._latest.get(workflow.name)
        if latest is None or latest.version < workflow.version:
            self._latest[workflow.name] = workflow

    def workflow(self, name: str, version: int) -> WorkflowDefinition[..., Any] | None:
        """The exact name and version, or None."""
        return self.workflows.get((name, version)) or BUILT_IN.get((name, version))

    def latest(self, name: str) -> WorkflowDefinition[..., Any] | None:
        """The highest version of a name, or None."""
        return self._latest.get(name)
