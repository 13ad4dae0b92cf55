"""The run parameters that a trainer function is given: model, data, inner and outer steps.

A mixin of RunSpec (run_spec.py), which is what everybody uses.
"""

from pydantic import BaseModel, Field

from trainer.parameter_kinds import BUILT_IN_DATA, NO_LINE_BREAK, ONE_LINE, Int


class TrainingParameters(BaseModel):
    """What is trained, on what and how; by these names a trainer function gets them."""

    # What to train, on what
    model_name: str = Field(
        "tiny-random", min_length=1, max_length=200, pattern=ONE_LINE,
        description="What to train: tiny-random or small-random (built in, random weights), a hub id, an "
        "s3:// or file:// URI, a prefix of the run's own bucket with a slash at its end, or a folder.",
    )  # fmt: skip
    from_scratch: bool = Field(
        False, description="Take the model's configuration only, and draw its weights from the seed."
    )
    tokenizer_name: str = Field(
        "", max_length=200, pattern=NO_LINE_BREAK,
        description="Tokenizer, named as model_name is; empty is the model's own, `bytes` one token a byte.",
    )  # fmt: skip
    trainable: str = Field(
        "", max_length=250, pattern=NO_LINE_BREAK,
        description="Regular expression; only parameters in whose names it is found are trained and "
        "exchanged. Empty trains all.",
    )  # fmt: skip
    lora_rank: Int = Field(
        0, ge=0, le=1024,
        description="Rank of low-rank adapters (LoRA), trained in place of the model; 0 is none.",
    )  # fmt: skip
    lora_alpha: Int = Field(16, ge=1, le=4096, description="Adapters count lora_alpha / lora_rank times.")
    lora_targets: str = Field(
        "all-linear", min_length=1, max_length=250, pattern=ONE_LINE,
        description="Layers that get an adapter: all-linear, or ends of module names, separated by commas.",
    )  # fmt: skip
    gradient_checkpointing: bool = Field(
        False, description="Compute activations again in the backward pass: less memory, a third more work."
    )
    torch_compile: bool = Field(
        False, description="Compile the model: minutes at the start, faster steps on an accelerator."
    )
    dataset_uri: str = Field(
        BUILT_IN_DATA, min_length=1, max_length=1024, pattern=ONE_LINE,
        description="Text, JSON lines or Parquet, compressed or not: a file or a folder, as an s3:// or "
        "file:// URI or a prefix of the run's own bucket. `builtin` is the trainer's own source.",
    )  # fmt: skip
    validation_uri: str = Field(
        "", max_length=1024, pattern=NO_LINE_BREAK,
        description="Held-out data, named as dataset_uri is; empty holds out held_out_share of dataset_uri.",
    )  # fmt: skip
    held_out_share: float = Field(
        0.1, gt=0, le=0.5,
        description="Share of dataset_uri, chosen by hash, that is never trained on. Not used with "
        "validation_uri.",
    )  # fmt: skip
    text_field: str = Field(
        "text", min_length=1, max_length=200, pattern=ONE_LINE,
        description="Field of a JSON or Parquet row that holds its text, or its list of chat messages (role, "
        "content), which go through the tokenizer's chat template.",
    )  # fmt: skip
    shuffle_buffer: Int = Field(
        1024, ge=1, le=10_000_000,
        description="Sequences read ahead and shuffled together. The files are shuffled besides, anew each "
        "epoch. 1 keeps the order of a file.",
    )  # fmt: skip
    max_bad_rows: float = Field(
        0.01, ge=0, le=1,
        description="Share of rows that may be unusable (broken JSON, no text field, empty, not UTF-8) and "
        "are left out; more is an error.",
    )  # fmt: skip
    seq_len: Int = Field(64, ge=8, le=131_072, description="Tokens in a training sequence.")
    seed: Int = Field(0, ge=0, le=2**31 - 1, description="Seed of the initial weights and the data order.")

    # Inner steps, each replica alone
    total_steps: Int = Field(4, ge=1, le=10_000_000, description="Inner steps of each replica.")
    batch_size: Int = Field(4, ge=1, le=65_536, description="Sequences in one forward pass.")
    gradient_accumulation: Int = Field(1, ge=1, le=65_536, description="Forward passes in one inner step.")
    lr: float = Field(1e-3, gt=0, le=10, description="Peak inner learning rate.")
    inner_optimizer: str = Field(
        "adamw", pattern=r"^(adamw|muon)$", min_length=1, max_length=8,
        description="adamw, or muon: Muon for hidden matrices and AdamW for the rest (arXiv:2505.23725).",
    )  # fmt: skip
    warmup_steps: Int = Field(0, ge=0, le=10_000_000, description="Inner steps of linear warm-up.")
    lr_schedule: str = Field(
        "cosine", pattern=r"^(cosine|constant)$", min_length=1, max_length=8,
        description="The learning rate after the warm-up: a cosine to a tenth of the peak, or constant.",
    )  # fmt: skip
    weight_decay: float = Field(
        0.1, ge=0, le=10, description="Weight decay of matrices; norms and biases have none."
    )
    max_grad_norm: float = Field(1.0, gt=0, le=1e6, description="Gradients are clipped to this norm.")
    max_skipped_steps: Int = Field(
        10, ge=0, le=10_000_000,
        description="Inner steps of a replica that may be skipped because the loss or the gradient norm is "
        "no finite number; one more ends the run.",
    )  # fmt: skip
    eval_every_rounds: Int = Field(
        1, ge=1, le=1_000_000, description="Rounds between held-out losses of the shared weights."
    )

    # Outer steps: DiLoCo (arXiv:2311.08105), in fragments Streaming DiLoCo (arXiv:2501.18512)
    sync_every: Int = Field(
        2, ge=1, le=1_000_000,
        description="Inner steps in which every fragment is synchronised once: the paper's H.",
    )  # fmt: skip
    outer_lr: float = Field(0.7, gt=0, le=10, description="Outer learning rate; the paper's 0.7.")
    outer_momentum: float = Field(
        0.9, ge=0, lt=1, description="Outer Nesterov momentum; the paper's 0.9. Short runs learn best with 0."
    )
    fragments: Int = Field(
        1, ge=1, le=1000, description="Parts of the model, synchronised in turn. 1 is plain DiLoCo."
    )
    fragment_sync_delay: Int = Field(
        0, ge=0, le=1_000_000,
        description="Inner steps between sending a fragment and needing its mean: the paper's tau. They "
        "hide the exchange.",
    )  # fmt: skip
    fragment_update_alpha: float = Field(
        0.0, ge=0, le=1,
        description="Share of the local weights kept when a mean arrives; 0 takes the shared ones.",
    )  # fmt: skip
