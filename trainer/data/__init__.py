"""From files to batches of token ids: disjoint by rank, shuffled, resumable at any step, exactly.

Files (sources.py) hold rows (formats.py), rows become tokens (tokens.py), shares.py says whose
they are, stream.py strings them together epoch after epoch, batches.py cuts and shuffles, and
held_out.py gives what the shared weights are evaluated on. These are the names for others:
"""

from trainer.data.batches import Batches
from trainer.data.data_set import DataSet, open_data_set
from trainer.data.held_out import bigram_loss, held_out_windows

__all__ = ["Batches", "DataSet", "bigram_loss", "held_out_windows", "open_data_set"]
