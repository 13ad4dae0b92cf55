"""What goes wrong between a client and S3 now and then, as data for the servers that do it."""

from dataclasses import dataclass

# What can happen to a request. An object is stored only where the name says so.
REFUSED_409 = "409, nothing stored"
REFUSED_500 = "500, nothing stored"
REFUSED_503 = "503, nothing stored"
DENIED = "403, nothing stored"
RESET = "nothing stored, then a reset"
NO_ANSWER = "nothing stored, and no answer until the client gives up"
LOST_ANSWER = "stored, then the connection is closed without an answer"
STORED_503 = "503, though it was stored"
RIVAL_FIRST = "somebody else's bytes are stored just before"
TRUNCATED = "the first half of the object, as if that were all"
FLIPPED_BIT = "one bit of the answer differs"
RESET_MID_BODY = "half of the answer's body, then a reset"
SLOW_DRIP = "the answer's body in eight pieces with pauses"

REFUSALS = (REFUSED_409, REFUSED_500, REFUSED_503, DENIED)
# What can happen to a request of each verb: a fault without effect would prove nothing.
POSSIBLE = dict.fromkeys(("HEAD", "DELETE"), (*REFUSALS, RESET, NO_ANSWER))
POSSIBLE["GET"] = (*POSSIBLE["HEAD"], TRUNCATED, FLIPPED_BIT, RESET_MID_BODY, SLOW_DRIP)
POSSIBLE["POST"] = (*POSSIBLE["HEAD"], LOST_ANSWER)
POSSIBLE["PUT"] = (*POSSIBLE["POST"], STORED_503, RIVAL_FIRST)
RIVAL = b'{"written by": "a rival"}'


@dataclass
class Fault:
    """After the first `after` requests of this verb whose key ends so: the next `times` of them.

    No end at all stands for listings, which have no key.
    """

    verb: str
    key_end: str
    what: str
    times: int = 1
    fired: int = 0
    after: int = 0

    def __post_init__(self) -> None:
        if self.what not in POSSIBLE[self.verb]:
            raise ValueError(f"{self.what!r} can't happen to a {self.verb}")

    def strikes(self, verb: str, key: str) -> bool:
        """Whether this request meets the fault; counts it."""
        meant = key.endswith(self.key_end) if self.key_end else not key
        if self.verb != verb or not meant or self.fired == self.times:
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.fired += 1
        return True
