"""How many tokens a second does the data pipeline give by itself, from files to batches?

    python -m benchmarks.data_pipeline [--mb 4] [--repeat 3]

The Python standard library's source, `--mb` of it, as text files, compressed JSON lines and
Parquet in a local folder; a rank of one takes an epoch of batches of 8 x 1024. `tokens_per_s`
for bytes and, under `bpe`, for a byte-pair tokenizer of 4,000 tokens trained on such text; medians
of `--repeat`. `first_batch_s` is the time to the first batch, and `resume_s` to the next one after
load_state_dict in the middle of the epoch. Training asks for 10^4 to 10^5 a second.
"""

import argparse
import json
import os
import statistics
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from tests.trainer.data.sets import write
from trainer.data import Batches, open_data_set
from trainer.model import build_tokenizer

BATCH_SIZE, SEQ_LEN, SHUFFLE_BUFFER = 8, 1024, 1024
BPE_VOCABULARY: Final = 4000
END: Final = "</s>"
FILES: Final = 8  # of the formats that hold many rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mb", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    texts = standard_library(given.mb * 10**6)
    tokenizers = {"bytes": build_tokenizer(), "bpe": byte_pairs(texts)}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, suffix in {"text": ".txt", "json_lines_gz": ".jsonl.gz", "parquet": ".parquet"}.items():
            lay_out(Path(folder) / name, suffix, texts)
            for kind, tokenizer in tokenizers.items():
                epochs = [epoch(Path(folder) / name, tokenizer) for _ in range(given.repeat)]
                found[f"{name}_{kind}"] = {
                    key: float(f"{statistics.median(one[key] for one in epochs):.3g}") for key in epochs[0]
                }
    size = sum(map(len, texts)) / 1e6
    print(json.dumps({"benchmark": "data_pipeline", "mb": round(size, 1), "cores": os.cpu_count()} | found))


def standard_library(size: int) -> list[str]:
    texts: list[str] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py")):
        text = path.read_text(errors="replace")
        if "site-packages" not in str(path) and text.strip():
            texts.append(text)
            size -= len(text)
        if size <= 0:
            break
    return texts


def byte_pairs(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts[:60], BPE_VOCABULARY, show_progress=False, special_tokens=[END])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token=END)


def lay_out(folder: Path, suffix: str, texts: list[str]) -> None:
    if suffix == ".txt":
        for number, text in enumerate(texts):
            write(folder / f"{number}.txt", [text])
    else:
        for number in range(FILES):
            write(folder / f"{number}{suffix}", texts[number::FILES], group_rows=100)


def epoch(folder: Path, tokenizer: Any) -> dict[str, float]:
    """Take one epoch, then go back to its middle."""
    began = time.perf_counter()
    found = batches(folder, tokenizer)
    found.next_batch()
    first_batch_s = time.perf_counter() - began
    states = [found.state_dict()]
    while states[-1]["epoch"] == 0:
        found.next_batch()
        states.append(found.state_dict())
    seconds = time.perf_counter() - began
    again = batches(folder, tokenizer)
    began = time.perf_counter()
    again.load_state_dict(states[len(states) // 2])
    again.next_batch()
    return {
        "tokens_per_s": len(states) * BATCH_SIZE * SEQ_LEN / seconds,
        "first_batch_s": first_batch_s,
        "resume_s": time.perf_counter() - began,
    }


def batches(folder: Path, tokenizer: Any) -> Batches:
    return Batches(
        open_data_set(str(folder), tokenizer),
        rank=0,
        world_size=1,
        seq_len=SEQ_LEN,
        batch_size=BATCH_SIZE,
        seed=0,
        shuffle_buffer=SHUFFLE_BUFFER,
    )


if __name__ == "__main__":
    main()
