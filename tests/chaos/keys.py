"""The keys at which a schedule waits for a process, as regular expressions."""


def payload(round_index: int, rank: int) -> str:
    return rf"^diloco-data/.*/round_{round_index:06d}/rank_{rank:04d}\.c"


def later_payload(round_index: int, rank: int, claim: int) -> str:
    """That of one process of the rank."""
    return rf"^diloco-data/.*/round_{round_index:06d}/rank_{rank:04d}\.c{claim}\."


def contribution(round_index: int, rank: int) -> str:
    return rf"/log/round_{round_index:06d}/rank_{rank:04d}\.json$"


def roster(round_index: int, _rank: int = 0) -> str:
    """Whoever comes first puts it; the schedule's rank does not matter."""
    return rf"/log/round_{round_index:06d}/roster\.json$"


def slice_payload(round_index: int, rank: int) -> str:
    return rf"^diloco-data/.*/round_{round_index:06d}/mean_\d+\.r{rank:04d}\.c"


def slice_announced(round_index: int, rank: int) -> str:
    """Slice s belongs to rank s where every rank has one."""
    return rf"/log/round_{round_index:06d}/mean_{rank:04d}\.json$"


def claim(rank: int, number: int) -> str:
    return rf"/claims/rank_{rank:04d}\.{number}\.json$"


def progress(rank: int) -> str:
    return rf"/progress/rank_{rank:04d}\.json$"


def result(rank: int) -> str:
    return rf"/results/rank_{rank:04d}\.json$"
