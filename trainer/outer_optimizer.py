"""The outer step: Nesterov momentum whose bits do not depend on the processor.

torch's own SGD(nesterov=True) uses fused multiply-adds where the processor has them, so an
AVX2 machine and one without drift apart in the last bit, and replicas must not. Here each
operation rounds once: multiply, then add. The formula is torch's (and DiLoCo's, Algorithm 1,
arXiv:2311.08105): m <- mu m + g; theta <- theta - lr (mu m + g).
"""

from collections.abc import Callable, Iterable

import torch


class OuterNesterov(torch.optim.Optimizer):
    """Nesterov momentum on pseudo-gradients. One instance for each fragment.

    The momentum exists from the start, as zeros, so that the shared state always has one form.
    """

    def __init__(self, params: Iterable[torch.nn.Parameter], *, lr: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One outer step from the gradients in place. `closure` is torch's signature and unused."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                buffer = self.state[parameter]["momentum_buffer"]
                # No add_(x, alpha=): it is one fused operation on some processors and two on others.
                buffer.mul_(momentum).add_(parameter.grad)
                parameter.sub_(buffer.mul(momentum).add_(parameter.grad).mul_(lr))
