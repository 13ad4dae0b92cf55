"""A tensor's values where the network is: in the CPU's memory, as flat float32.

On the CPU that is the tensor itself. From an accelerator it is a copy into page-locked memory,
queued on the current stream behind what computes the tensor: the training thread goes on, and
the thread that needs the values waits for the copy.
"""

import torch

from trainer.rendezvous.wire import Floats


class HostCopy:
    """Begins the copy, if one is needed; `values` waits for it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        tensor = tensor.detach()
        self._copied: torch.Event | None = None
        if tensor.device.type == "cpu":
            self._host = tensor.to(torch.float32).contiguous().view(-1)
            return
        self._host = torch.empty(tensor.numel(), dtype=torch.float32, pin_memory=True)
        self._host.copy_(tensor.reshape(-1), non_blocking=True)
        self._copied = torch.Event(tensor.device)
        self._copied.record(torch.accelerator.current_stream(tensor.device))

    def values(self) -> Floats:
        """The values, once they are there. Shares memory with a contiguous float32 tensor on the CPU."""
        if self._copied is not None:
            self._copied.synchronize()
        values: Floats = self._host.numpy()
        return values
