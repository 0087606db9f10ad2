"""What training leaves behind: a table of numbers by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["History"]


class History(Mapping[str, np.ndarray]):
    """Columns of equal length, one row per recorded step; NaN where nothing was recorded.

    ``history["loss"]`` is an array, ``history.to_pandas()`` a table.

    >>> history = gpn.History()
    >>> history.append(step=1, loss=3.0)
    >>> history.append(step=2, loss=2.0, validation_nlpd=0.5)
    >>> history["validation_nlpd"].tolist()
    [nan, 0.5]
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        """What was recorded, by column, of one step after the other."""

    def append(self, **values: float) -> None:
        """Add a row."""
        self.rows.append({name: float(value) for name, value in values.items()})

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in set(self):
            raise KeyError(f"{name!r} was not recorded; columns are {sorted(set(self))}.")
        return np.array([row.get(name, np.nan) for row in self.rows])

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for row in self.rows for name in row))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def last(self, name: str, step: int) -> float | None:
        """The value of a column at this very step, None if it was not recorded then."""
        row = self.rows[-1] if self.rows else {}
        return row.get(name) if row.get("step") == step else None

    @property
    def num_rows(self) -> int:
        """Recorded steps."""
        return len(self.rows)

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` indexed by step."""
        import pandas

        return pandas.DataFrame(self.rows).set_index("step")

    def __repr__(self) -> str:
        if not self.rows:
            return "History(empty)"
        last = ", ".join(f"{name}={value:.6g}" for name, value in self.rows[-1].items())
        return f"History({self.num_rows} rows; last: {last})"
