"""What a contribution is computed from, and so must fit: a fragment's layout and its shared state."""

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from trainer.rendezvous.documents import Contribution
from trainer.rendezvous.geometry import Geometry
from trainer.rendezvous.state_hash import layout_hash, shared_state_hash
from trainer.rendezvous.wire import WireFormat

FragmentState = Mapping[str, Any]  # torchft's {"original_parameters": ..., "outer_optimizer": ...}


@dataclass(frozen=True)
class Base:
    """A fragment before a round: which values, in which order, and the hash of what is shared of it.

    The hash is of twice as many bytes as the payload. It is made on a thread of its own while the
    payload is on its way, since only the contribution that follows the payload needs it.
    """

    fragment: int
    numel: int
    layout_hash: str
    _shared_hash: Future[str]

    @property
    def shared_hash(self) -> str:
        """Of the weights and the outer optimizer's state; waits until it is known."""
        return self._shared_hash.result()

    @classmethod
    def of(cls, fragment: int, state: FragmentState) -> "Base":
        parameters = state["original_parameters"]
        names = [(name, t.shape, t.dtype) for name, t in parameters.items()]
        numel = sum(t.numel() for t in parameters.values())
        return cls(fragment, numel, layout_hash(names), _hashed(state))

    def check(self, contribution: Contribution, geometry: Geometry, wire: WireFormat, address: str) -> None:
        """Raise ForeignObject where a contribution is of another fragment, layout, format or size."""
        contribution.check_is(
            address,
            fragment=self.fragment,
            dtype=wire.name,
            shape=(self.numel,),
            layout_hash=self.layout_hash,
        )
        contribution.payload.check_size(address, *payload_size(geometry, wire, range(geometry.chunks)))


def _hashed(state: FragmentState) -> Future[str]:
    hashed: Future[str] = Future()

    def run() -> None:
        try:
            hashed.set_result(shared_state_hash(state))
        except BaseException as error:  # noqa: BLE001 - raised where the hash is asked for
            hashed.set_exception(error)

    threading.Thread(target=run, name="base-hash", daemon=True).start()
    return hashed


def payload_size(geometry: Geometry, wire: WireFormat, chunks: range) -> tuple[int, int]:
    """Bytes of some chunks together, and of one whole chunk."""
    return sum(wire.size_of(geometry.count(i)) for i in chunks), wire.size_of(geometry.chunk_elements)
