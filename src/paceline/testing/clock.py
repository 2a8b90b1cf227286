"""A clock that moves only when told to."""


class FakeClock:
    """A clock for tests: it stands still until `advance(seconds)` is called."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return 1_000_000_000.0 + self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
