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
        description="Folder of text files: an s3:// or file:// URI, or a prefix of the run's own bucket. "
        "A tenth of the files, chosen by hash, is held out. `builtin` is the trainer's own source.",
    )  # fmt: skip
    seq_len: Int = Field(64, ge=8, le=131_072, description="Tokens in a training sequence.")
    seed: Int = Field(0, ge=0, le=2**31 - 1, description="Seed of the initial weights and the data order.")

    # Inner steps: AdamW, each replica alone
    total_steps: Int = Field(4, ge=1, le=10_000_000, description="Inner steps of each replica.")
    batch_size: Int = Field(4, ge=1, le=65_536, description="Sequences in one forward pass.")
    gradient_accumulation: Int = Field(1, ge=1, le=65_536, description="Forward passes in one inner step.")
    lr: float = Field(1e-3, gt=0, le=10, description="Peak inner learning rate.")
    warmup_steps: Int = Field(
        0, ge=0, le=10_000_000, description="Inner steps of linear warm-up; a cosine to a tenth follows."
    )
    weight_decay: float = Field(0.1, ge=0, le=10, description="AdamW's weight decay.")
    max_grad_norm: float = Field(1.0, gt=0, le=1e6, description="Gradients are clipped to this norm.")
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
