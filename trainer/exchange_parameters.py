"""The run parameters of the exchange: how pseudo-gradients travel, and how long peers are waited for.

A mixin of RunSpec (run_spec.py), which is what everybody uses.
"""

from pydantic import BaseModel, Field

from trainer.job_parameters import MAX_RUNTIME_S


class ExchangeParameters(BaseModel):
    """What the rendezvous reads of a run."""

    # The exchange
    wire_dtype: str = Field(
        "fp32", pattern=r"^(fp32|bf16|int8|int4)$", min_length=1, max_length=8,
        description="How pseudo-gradients travel: fp32, bf16, int8 or int4. The last two are quantised in "
        "blocks of 256, 3.9 and 7.8 times fewer bytes, with error feedback.",
    )  # fmt: skip
    mean_dtype: str = Field(
        "fp32",
        pattern=r"^(fp32|bf16)$",
        min_length=1,
        max_length=8,
        description="How means travel: fp32 or bf16.",
    )

    # Waiting for peers
    timeout_s: float = Field(
        1800.0, ge=1, le=MAX_RUNTIME_S,
        description="A peer whose progress stands still this long is lost, and the run is given up.",
    )  # fmt: skip
    startup_timeout_s: float = Field(
        3600.0, ge=1, le=MAX_RUNTIME_S,
        description="The same bound where SageMaker may still be finding an instance: in the first round, "
        "and for a peer that is being relaunched or whose spot instance was taken back.",
    )  # fmt: skip
    round_timeout_s: float = Field(
        14_400.0, ge=1, le=MAX_RUNTIME_S,
        description="The longest wait in one round, whatever progress the peers report.",
    )  # fmt: skip
    poll_interval_s: float = Field(
        1.0, ge=0.01, le=60,
        description="First pause between two looks at the bucket; grows to five times this, with jitter.",
    )  # fmt: skip
