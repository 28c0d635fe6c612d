"""Whether this thread is in a step of workflow code: what must not be done there asks here."""

from __future__ import annotations

import threading
from typing import Final


class Step(threading.local):
    """A thread's own flag."""

    active = False


current: Final = Step()
