"""How far a replica's pseudo-gradient and the mean of all agree: norms, and the cosine between them.

Independent replicas of N have a cosine of 1/sqrt(N), equal ones of 1. A cosine that falls while
the run goes on is the early sign of drift: replicas undo each other's work, and H is too long.
"""

import math
from dataclasses import dataclass

import numpy as np

from trainer.rendezvous.wire import Floats


@dataclass
class Agreement:
    """Sums over a tensor, chunk by chunk, so that the mean may overwrite the values it is made of."""

    own_squares: float = 0.0
    mean_squares: float = 0.0
    products: float = 0.0

    def add(self, own: Floats, mean: Floats) -> None:
        """Count one chunk, before `own` becomes `mean`."""
        self.own_squares += float(np.dot(own, own))
        self.mean_squares += float(np.dot(mean, mean))
        self.products += float(np.dot(own, mean))

    @property
    def own_norm(self) -> float:
        return math.sqrt(self.own_squares)

    @property
    def cosine(self) -> float:
        """From -1 to 1; 0 where one of the two is zero, or so large that its norm is no float32."""
        norms = math.sqrt(self.own_squares) * math.sqrt(self.mean_squares)
        return self.products / norms if 0 < norms < math.inf else 0.0
