"""How fast do these processes move bytes when they do nothing else? The floor of an exchange.

N clients and one server process, bare sockets, sendall and recv_into: first all send, then all
receive, as an exchange does.
"""

import socket
import socketserver
import statistics
import threading
from collections.abc import Callable

from benchmarks.gang import Workers

BUFFER_BYTES = 2**20


def floor_s(clients: int, sent_bytes: int, received_bytes: int, repeat: int) -> float:
    """Median seconds for every client to send and receive that much."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Sink) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        port = server.server_address[1]
        with Workers(clients, setup, port, sent_bytes, received_bytes) as workers:
            walls = [max(cost.wall_s for cost in workers.run()) for _ in range(repeat + 1)][1:]
        server.shutdown()
    return statistics.median(walls)


class _Sink(socketserver.BaseRequestHandler):
    """Takes as many bytes as announced, gives as many as asked for."""

    def handle(self) -> None:
        sizes = b""
        while len(sizes) < 16:
            sizes += self.request.recv(16 - len(sizes))
        take, give = int.from_bytes(sizes[:8], "big"), int.from_bytes(sizes[8:], "big")
        buffer = memoryview(bytearray(BUFFER_BYTES))
        while take:
            take -= self.request.recv_into(buffer[: min(take, len(buffer))])
        while give:
            piece = buffer[: min(give, len(buffer))]
            self.request.sendall(piece)
            give -= len(piece)


def setup(_rank: int, port: int, sent_bytes: int, received_bytes: int) -> Callable[[], None]:
    data, buffer = memoryview(bytearray(BUFFER_BYTES)), memoryview(bytearray(BUFFER_BYTES))

    def run() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(sent_bytes.to_bytes(8, "big") + received_bytes.to_bytes(8, "big"))
            left = sent_bytes
            while left:
                piece = data[: min(left, len(data))]
                connection.sendall(piece)
                left -= len(piece)
            left = received_bytes
            while left:
                left -= connection.recv_into(buffer[: min(left, len(buffer))])

    return run
