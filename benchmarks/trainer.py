"""Is training in a replica as fast as in the trainer that people know?

    python -m benchmarks.trainer            about three minutes on two idle cores
    python -m benchmarks.trainer --quick    to see it work

`ratio` is the tokens a second of diloco_train over those of transformers' own Trainer: same model
from the same weights, same batch size, schedule, clipping and optimizer, turn by turn in this one
process; medians of windows of `window_steps` inner steps, the first of each turn left out. Ours
includes its exchange at the end of each window, a round of so many steps, through a folder;
checkpoints and evaluations are in neither.
`start_to_first_step_s` is a replica's process from its start to the end of its first inner step.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from tests.support.gang import manager
from trainer.inner_optimizer import BETAS
from trainer.model import BYTE_OFFSET, build_model
from trainer.rendezvous.object_store import open_store
from trainer.run_file import create_run
from trainer.run_spec import parse
from trainer.train import diloco_train

MODEL: Final = "small-random"
SEQ_LEN: Final = 128
LR: Final = 3e-3
WEIGHT_DECAY: Final = 0.1
FIRST_STEP: Final = " inner_step=1 "


class Windows(Dataset[dict[str, torch.Tensor]]):
    """The trainer's own source as rows of bytes, in memory: its Trainer waits for no data."""

    def __init__(self) -> None:
        source = Path(__file__).parents[1] / "trainer"
        data = b"\n".join(path.read_bytes() for path in sorted(source.rglob("*.py")))
        rows = torch.frombuffer(bytearray(data[: len(data) // SEQ_LEN * SEQ_LEN]), dtype=torch.uint8)
        self._rows = rows.view(-1, SEQ_LEN).long() + BYTE_OFFSET

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


class Stopwatch(TrainerCallback):  # type: ignore[misc]
    """When each window of steps ended."""

    def __init__(self, window_steps: int) -> None:
        self._window_steps = window_steps
        self.ends_s: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._window_steps == 0:
            self.ends_s.append(time.perf_counter())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--window-steps", type=int, default=100)
    parser.add_argument("--windows", type=int, default=4, help="of each turn, after one that warms up")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small: not a figure to report")
    given = parser.parse_args()
    if given.quick:
        given.window_steps, given.windows, given.turns = 5, 3, 1
    set_verbosity_error()
    disable_progress_bar()
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(given.turns):  # by turns: what else the machine does meanwhile hits both
        ours += ours_tokens_per_s(given.batch_size, given.window_steps, given.windows)
        theirs += theirs_tokens_per_s(given.batch_size, given.window_steps, given.windows)
    starts = [start_to_first_step_s() for _ in range(given.turns)]
    print(json.dumps({
        "benchmark": "trainer",
        "ratio": round(statistics.median(ours) / statistics.median(theirs), 3),
        "tokens_per_s": round(statistics.median(ours)),
        "trainer_tokens_per_s": round(statistics.median(theirs)),
        "start_to_first_step_s": round(statistics.median(starts), 2),
        "model": MODEL, "batch_size": given.batch_size, "seq_len": SEQ_LEN,
        "window_steps": given.window_steps, "windows": len(ours), "quick": given.quick,
    }))  # fmt: skip


def ours_tokens_per_s(batch_size: int, window_steps: int, windows: int) -> list[float]:
    """One run of a single replica; each round is a window."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store((Path(folder) / "store").as_uri())
        made = manager(store, 0, 1)
        steps = window_steps * (windows + 1)
        diloco_train(
            manager=made, rank=0, world_size=1, model_dir=Path(folder) / "model", model_name=MODEL,
            seq_len=SEQ_LEN, batch_size=batch_size, total_steps=steps, sync_every=window_steps, lr=LR,
            weight_decay=WEIGHT_DECAY, eval_every_rounds=windows + 1,
        )  # fmt: skip
        made._reporter.close("finished")
        lines = store.get(made.log.keys.metrics(0)).splitlines()
    return [json.loads(line)["tokens_per_s"] for line in lines[1:]]


def theirs_tokens_per_s(batch_size: int, window_steps: int, windows: int) -> list[float]:
    """transformers' Trainer with what diloco_train does: fused AdamW, cosine, clipping, a log a window."""
    watch = Stopwatch(window_steps)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=build_model(MODEL, seq_len=SEQ_LEN, seed=0),
            args=TrainingArguments(
                output_dir=folder, per_device_train_batch_size=batch_size,
                max_steps=window_steps * (windows + 1), learning_rate=LR, lr_scheduler_type="cosine",
                weight_decay=WEIGHT_DECAY, adam_beta1=BETAS[0], adam_beta2=BETAS[1], max_grad_norm=1.0,
                optim="adamw_torch_fused", logging_steps=window_steps, save_strategy="no",
                report_to=[], disable_tqdm=True, bf16=torch.cuda.is_available(),
                dataloader_pin_memory=torch.cuda.is_available(),
            ),
            train_dataset=Windows(),
            callbacks=[watch],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)  # its lines would stand before ours
        trainer.train()
    tokens = window_steps * batch_size * SEQ_LEN
    return [tokens / (end - start) for start, end in zip(watch.ends_s, watch.ends_s[1:], strict=False)]


def start_to_first_step_s() -> float:
    """A replica's own process, until it reports a round of one inner step."""
    with tempfile.TemporaryDirectory() as folder:
        run = create_run(
            open_store((Path(folder) / "store").as_uri()), "run",
            parse({"n_replicas": 1, "total_steps": 1, "sync_every": 1, "model_name": MODEL}),
        )  # fmt: skip
        began_s = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer.replica_entrypoint", "--run", run.uri, "--rank", "0"],
            stdout=subprocess.PIPE, text=True, env={"SAGEMAKER_BASE_DIR": folder, "PATH": ""},
        )  # fmt: skip
        assert process.stdout is not None
        took_s, output = None, []
        for line in process.stdout:
            output.append(line)
            if took_s is None and FIRST_STEP in line:
                took_s = time.perf_counter() - began_s
        if process.wait() != 0 or took_s is None:
            raise RuntimeError("the replica took no step:\n" + "".join(output))
        return took_s


if __name__ == "__main__":
    main()
