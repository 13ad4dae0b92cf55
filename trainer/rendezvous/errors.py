"""One exception for each decision a caller of the rendezvous can take.

The text of each says what happened, which rank, round and key, and what to do: it becomes the
failure reason that SageMaker shows.
"""


class RendezvousError(Exception):
    """Base of all that can go wrong between replicas."""


class AbsentObject(RendezvousError):
    """No object under this key. Wait for it, or give up, as the caller's rule says."""


class AccessDenied(RendezvousError):
    """The store refused this identity. Trying again can't help: grant the action and start anew."""


class StoreFailed(RendezvousError):
    """The store did not answer properly for as long as we retried. A relaunch may help."""


class DamagedObject(RendezvousError):
    """Bytes that aren't what their manifest says, after fetching them again. Never averaged."""


class ForeignObject(RendezvousError):
    """A well-formed object that belongs to another run, round, rank or model. Never averaged."""


class PeerLost(RendezvousError):
    """A peer stood still past its bound, or somebody gave the run up. Not this replica's fault."""


class Superseded(RendezvousError):
    """A newer process has taken up this rank. Leave it the field."""


class OddOneOut(RendezvousError):
    """Most replicas share other weights than this one. Leave; a relaunch catches up from the log."""


class ReplicasDiverged(RendezvousError):
    """The replicas' shared weights differ and none has a majority. The run is given up."""


class NonFinite(RendezvousError):
    """A loss or pseudo-gradient holds NaN or infinity. It would poison every replica; nothing was sent."""


class Stopped(RendezvousError):
    """This process was asked to stop (SIGTERM) and has left the exchange."""
