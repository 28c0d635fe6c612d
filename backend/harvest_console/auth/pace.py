"""How often one address may be wrong about the admin token."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from harvest import clock

_BURST: Final = 5.0
_PER_SECOND: Final = 0.1
_MOST_ADDRESSES: Final = 1_000


class TokenPace:
    """Five wrong tokens at once and one more each ten seconds, for each address; what is beyond is not looked at."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def may_try(self, address: str) -> bool:
        """Whether a token from `address` is to be looked at now."""
        return self._allowance(address) >= 1.0

    def was_wrong(self, address: str) -> None:
        """Count a wrong token."""
        self._left[address] = (max(0.0, self._allowance(address) - 1.0), clock.monotonic())
        self._left.move_to_end(address)
        if len(self._left) > _MOST_ADDRESSES:
            self._left.popitem(last=False)

    def _allowance(self, address: str) -> float:
        left, at = self._left.get(address, (_BURST, clock.monotonic()))
        return min(_BURST, left + (clock.monotonic() - at) * _PER_SECOND)
