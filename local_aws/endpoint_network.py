"""A network that has one address and nothing else: the endpoint of the embedded AWS.

A container in it can reach S3 and no other machine, this one included: what a training job gets by
chance from the network it happens to run on would fail here. It is a network namespace of a thread
(network_namespaces(7)) that never does anything else; its loopback has one listening socket, and
what connects to it is carried to the same port of this machine's own loopback. So an endpoint URL
means the same on both sides. Needs root: CAP_SYS_ADMIN makes namespaces.
"""

import ctypes
import fcntl
import os
import socket
import struct
import threading
from pathlib import Path
from typing import Final

_CLONE_NEWNET: Final = 0x40000000  # unshare(2)
_SIOCSIFFLAGS: Final = 0x8914  # netdevice(7)
_IFF_UP: Final = 0x1
_CHUNK_BYTES: Final = 1 << 20


class EndpointNetwork:
    """Lives as long as this process. Raises OSError without the right to make one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._made = threading.Event()
        self._error: OSError | None = None
        self._listener = socket.socket()
        self._thread = 0
        threading.Thread(target=self._hold, name="endpoint-network", daemon=True).start()
        self._made.wait()
        if self._error is not None:
            raise self._error
        # Started by this thread, so that what it connects to is on this machine's side.
        threading.Thread(target=self._accept, name="endpoint-forwarder", daemon=True).start()

    @property
    def path(self) -> Path:
        """The namespace, as a container engine takes it (podman run --network ns:PATH)."""
        return Path(f"/proc/{os.getpid()}/task/{self._thread}/ns/net")

    def _hold(self) -> None:
        """Make the namespace and stay in it: it ends with its last thread."""
        self._thread = threading.get_native_id()
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(_CLONE_NEWNET):
                number = ctypes.get_errno()
                raise OSError(number, f"no network namespace: {os.strerror(number)} (it needs root)")
            # Made before, the socket would belong to the namespace left behind.
            self._listener = socket.socket()
            fcntl.ioctl(self._listener, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
            self._listener.bind(("127.0.0.1", self._port))
            self._listener.listen(256)
        except OSError as error:
            self._error = error
            return
        finally:
            self._made.set()
        threading.Event().wait()

    def _accept(self) -> None:
        while True:
            inside, _ = self._listener.accept()
            try:
                outside = socket.create_connection(("127.0.0.1", self._port))
            except OSError:  # the endpoint has ended: so does the connection
                inside.close()
                continue
            for source, target in ((inside, outside), (outside, inside)):
                threading.Thread(target=_carry, args=(source, target), daemon=True).start()


def _carry(source: socket.socket, target: socket.socket) -> None:
    """Copy one direction of a connection to its end, and pass the end on."""
    try:
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # either side is gone, and the other hears of it by its own half
        source.close()
        target.close()
