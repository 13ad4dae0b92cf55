"""The benchmarks by name, and what is wanted of each."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

# Name: module and arguments.
BENCHMARKS: Final[Mapping[str, tuple[str, ...]]] = {
    "exchange_4x256": ("benchmarks.exchange", "--replicas", "4", "--mb", "256"),
    "exchange_8x64": ("benchmarks.exchange", "--replicas", "8", "--mb", "64"),
    "memory_2x2048": ("benchmarks.exchange", "--replicas", "2", "--mb", "2048", "--ours"),
    "scaling": ("benchmarks.exchange", "--scaling", "--mb", "64"),
    "sharding": ("benchmarks.sharding",),
    "overlap": ("benchmarks.overlap",),
    "inner_step": ("benchmarks.inner_step",),
    "wire": ("benchmarks.wire",),
    "recovery": ("benchmarks.recovery",),
    "trainer": ("benchmarks.trainer",),
    "data_pipeline": ("benchmarks.data_pipeline",),
    "memory": ("benchmarks.memory",),
}
# Too long to be run with the others: `python -m benchmarks learning`.
LONG: Final[Mapping[str, tuple[str, ...]]] = {"learning": ("benchmarks.learning",)}

_RELATIONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
}


@dataclass(frozen=True)
class Goal:
    """One figure: where it stands in its benchmark's line, and what it should be."""

    benchmark: str
    path: str  # names joined by dots
    relation: str
    bound: float
    words: str

    @property
    def wanted(self) -> str:
        return f"{self.relation} {self.bound:g}"

    def find(self, line: Mapping[str, Any]) -> float:
        value: Any = line
        for name in self.path.split("."):
            value = value[name]
        return float(value)

    def is_met(self, found: float) -> bool:
        return _RELATIONS[self.relation](found, self.bound)


GOALS: Final = (
    Goal("exchange_4x256", "ratio", ">=", 7, "an exchange against s3fs and torch.save, 4 replicas, 256 MiB"),
    Goal("exchange_4x256", "memory_ratio", ">=", 20, "its peak extra memory, likewise"),
    Goal("exchange_4x256", "over_floor", "<=", 2, "its time over moving the same bytes by bare sockets"),
    Goal("exchange_8x64", "ratio", ">=", 10, "an exchange against s3fs and torch.save, 8 replicas, 64 MiB"),
    Goal("memory_2x2048", "extra_tensors", "<", 1.3, "peak extra memory of a replica, in tensors of 2 GiB"),
    Goal("overlap", "hidden", ">=", 0.95, "share of an exchange hidden behind the inner steps"),
    Goal("inner_step", "overhead", "<=", 0.01, "what the DiLoCo loop adds to an inner step, median"),
    Goal("inner_step", "overhead_upper", "<=", 0.02, "the same, upper 95 % bound"),
    Goal("wire", "formats.int8.smaller", ">=", 3.9, "bytes of fp32 over bytes of int8"),
    Goal("wire", "formats.int4.smaller", ">=", 7.5, "bytes of fp32 over bytes of int4"),
    Goal("wire", "formats.int8.loss_change", "<=", 0.2, "held-out loss with int8 against fp32, per cent"),
    Goal("wire", "formats.int4.loss_change", "<=", 0.5, "held-out loss with int4 against fp32, per cent"),
    Goal("recovery", "of_possible", ">=", 0.95, "goodput under failures, of what is possible"),
    Goal("trainer", "ratio", ">=", 1, "tokens a second against transformers' own Trainer"),
    Goal("memory", "ratio", ">=", 0.9, "memory of a replica over the formula of docs/models-and-data.md"),
    Goal("memory", "ratio", "<=", 1.1, "the same, upper bound"),
    Goal("learning", "gap", "<=", 0.03, "held-out loss, DiLoCo of 4 above data-parallel, nats per byte"),
    Goal("learning", "bytes_ratio", ">=", 20, "bytes sent data-parallel over bytes sent by DiLoCo"),
)
