"""What users test with: a whole engine in memory whose time is skipped, and the replay of recorded histories."""

from harvest.definitions.llm_usage import LlmUsage
from harvest.history.document import HistoryDocument, decode_document, encode_document
from harvest.replay.verifier import Divergence, Verdict, verify
from harvest.testing.environment import WorkflowEnvironment
from harvest.testing.execution import Look
from harvest.testing.handle import EnvironmentHandle
from harvest.testing.mocking import Call, Mock, failing, in_turn, never, real, unclaimed

__all__ = [
    "Call",
    "Divergence",
    "EnvironmentHandle",
    "HistoryDocument",
    "LlmUsage",
    "Look",
    "Mock",
    "Verdict",
    "WorkflowEnvironment",
    "decode_document",
    "encode_document",
    "failing",
    "in_turn",
    "never",
    "real",
    "unclaimed",
    "verify",
]
