"""Inner steps whose loss or gradient norm is no finite number: skipped, counted, and bounded.

One bad batch is no reason to lose a run of weeks, and nothing of it reaches the weights: the
optimizer steps without gradients, which leaves weights and moments as they are, yet counts as an
inner step, so that all ranks' rounds end together. More than a few are a fault that skipping hides.
"""

import math
from dataclasses import dataclass

from trainer.rendezvous.errors import NonFinite


@dataclass
class StepGuard:
    """Counts one replica's skipped steps, over all its lives where checkpoints keep `state_dict`."""

    rank: int
    max_skipped: int
    skipped: int = 0

    def accepts(self, loss: float, grad_norm: float, *, round_index: int, step: int) -> bool:
        """Whether the step may be taken. Raises NonFinite at the first skipped step above the bound."""
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return True
        self.skipped += 1
        if self.skipped > self.max_skipped:
            what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {grad_norm}"
            raise NonFinite(
                f"rank {self.rank} round {round_index} inner step {step}: {what}, and {self.skipped - 1} "
                f"steps were skipped for that before, which is max_skipped_steps. Nothing of them was sent. "
                "Lower lr, lengthen warmup_steps, or look at the data of this rank."
            )
        return False

    def state_dict(self) -> dict[str, int]:
        return {"skipped": self.skipped}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.skipped = state["skipped"]
