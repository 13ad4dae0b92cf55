"""What one rank did in one round, for people and plots; one object a rank and round."""

import json
from dataclasses import asdict, dataclass, field


@dataclass
class RoundEvent:
    """How many seconds each part of a round took, and the bytes moved. Written when applied."""

    run_id: str
    round: int
    fragment: int
    rank: int
    claim: int
    started_at: str  # of the exchange, UTC, by this machine's clock: for people, never compared
    computed_s: float = 0.0  # inner steps, from the end of the round before to the pseudo-gradient
    put_s: float = 0.0  # payload and contribution
    waited_s: float = 0.0
    waited_for: list[int] = field(default_factory=list)  # the ranks that came last
    fetched_s: float = 0.0  # roster, payloads, mean
    applied_s: float = 0.0  # from the pseudo-gradient until the mean was handed to the outer step
    sent_bytes: int = 0
    received_bytes: int = 0
    pseudo_gradient_norm: float = 0.0  # as the others decode it; 0 where it was not sent
    mean_cosine: float = 0.0  # between that and the mean
    contributed: bool = True  # False where the round was committed before this process came to it

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()
