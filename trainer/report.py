"""What is left of a run for people: report.json, a table, a plot of the losses.

Shared by everything that runs runs. A leaf: matplotlib and rich are imported where they are
needed, so that importing this costs nothing.
"""

import json
from pathlib import Path
from typing import Any, Final

Report = dict[str, Any]

SUCCEEDED: Final = "SUCCEEDED"
FAILED: Final = "FAILED"
ABORTED: Final = "ABORTED"


def build_report(
    run_id: str, replicas: list[dict[str, Any]], results: dict[int, dict[str, Any]], *, model_uri: str
) -> Report:
    """The report of a run whose replicas have all ended.

    `replicas` has rank, status and attempts of each; `results` what finished ranks published. All
    finished with equal hashes is success. A difference is ReplicasDiverged, a missing result
    ReplicaFailed; both name the ranks.
    """
    rows = [
        {**row, "rounds": results.get(row["rank"], {}).get("rounds", 0),
         "weights_hash": results.get(row["rank"], {}).get("weights_hash")}
        for row in replicas
    ]  # fmt: skip
    first = results.get(0, {})
    report: Report = {
        "run_id": run_id,
        "status": SUCCEEDED,
        "error": None,
        "cause": None,
        **{name: first.get(name) for name in ("first_loss", "last_loss", "bigram_loss")},
        "model_uri": model_uri,
        "replicas": rows,
    }
    missing = [row["rank"] for row in rows if row["weights_hash"] is None]
    hashes = {row["rank"]: row["weights_hash"] for row in rows}
    if missing:
        report |= {"status": FAILED, "error": "ReplicaFailed", "cause": f"no result from ranks {missing}"}
    elif len(set(hashes.values())) > 1:
        shown = ", ".join(f"rank {rank} {value[:12]}" for rank, value in hashes.items())
        cause = f"the replicas ended with different weights: {shown}. The model is not to be trusted."
        report |= {"status": FAILED, "error": "ReplicasDiverged", "cause": cause}
    return report


def write_report(folder: Path, report: Report, metrics: dict[int, list[dict[str, Any]]]) -> None:
    """Write report.json and, where there are metrics, loss.png."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    if any(metrics.values()):
        plot_losses(folder / "loss.png", report, metrics)


def plot_losses(path: Path, report: Report, metrics: dict[int, list[dict[str, Any]]]) -> None:
    """Training loss of each replica, held-out loss of the shared weights, the bigram yardstick."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for rank, rows in sorted(metrics.items()):
        steps = [row["inner_step"] for row in rows]
        axes.plot(steps, [row["train_loss"] for row in rows], lw=1, alpha=0.5, label=f"rank {rank}, training")
    evaluated = [row for row in metrics.get(0, []) if "eval_loss" in row]
    steps = [0] + [row["inner_step"] for row in evaluated]
    losses = [report["first_loss"]] + [row["eval_loss"] for row in evaluated]
    if losses[0] is not None:
        axes.plot(steps, losses, "k-o", lw=2, ms=4, label="shared weights, held out")
    if report["bigram_loss"] is not None:
        axes.axhline(report["bigram_loss"], color="tab:red", ls="--", lw=1, label="bigram model, held out")
    axes.set_xlabel("inner steps of each replica")
    axes.set_ylabel("loss, nats per token")
    axes.set_title(f"run {report['run_id']}: {len(report['replicas'])} replicas, {report['status'].lower()}")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def print_report(report: Report) -> None:
    """The end of a run on the terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("rank", "status", "attempts", "rounds", "weights' hash", title=f"run {report['run_id']}")
    for row in report["replicas"]:
        hash_shown = (row["weights_hash"] or "-")[:16]
        table.add_row(str(row["rank"]), row["status"], str(row["attempts"]), str(row["rounds"]), hash_shown)
    console.print(table)
    names = [name for name in ("first_loss", "last_loss", "bigram_loss") if report[name] is not None]
    losses = [f"{name.replace('_', ' ')} {report[name]:.4f}" for name in names]
    if losses:
        console.print("held out, nats per token: " + ", ".join(losses), highlight=False, soft_wrap=True)
    if report["status"] == SUCCEEDED:
        console.print(f"{SUCCEEDED}: all replicas hold the same weights", style="green", highlight=False)
        console.print(f"model: {report['model_uri']}", highlight=False, soft_wrap=True)
    else:
        text = f"{report['status']}: {report['error']}: {report['cause']}"
        console.print(text, style="red", highlight=False, soft_wrap=True, markup=False)
