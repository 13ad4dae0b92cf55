"""A run parameter that is an object of names and texts, such as tags: its bounds, as data.

Like `RULES`, data so that pydantic and the state machine's JSONata check the same thing.
"""

import re
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from pydantic import AfterValidator, WithJsonSchema

# Names that hold a secret in most programs. An environment is shown to whoever may describe a job.
_SECRETS: Final = r"(^|_)(SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|KEY|AUTH)S?(_|$)"
# What SageMaker and the state machine set themselves.
_TAKEN: Final = (
    r"^(AWS_|SM_|SAGEMAKER_|TRAINING_JOB_|DILOCO_|(RUN_URI|REPLICA_RANK|WORLD_SIZE|JOB_COMPLETION_INDEX)$)"
)


@dataclass(frozen=True)
class Pairs:
    """Bounds of one such parameter. `refused` is looked for in a name's upper-case form."""

    most: int
    name_characters: int
    name_pattern: str
    refused: str
    value_characters: int
    value_pattern: str
    words: str

    def check(self, value: dict[str, str]) -> dict[str, str]:
        if len(value) > self.most or not all(map(self._fits, value.items())):
            raise ValueError(f"must be {self.words}")
        return value

    def _fits(self, pair: tuple[str, str]) -> bool:
        name, text = pair
        return (
            len(name) <= self.name_characters
            and re.fullmatch(self.name_pattern, name) is not None
            and re.search(self.refused, name.upper()) is None
            and len(text) <= self.value_characters
            and re.fullmatch(self.value_pattern, text) is not None
        )

    def annotated(self) -> Any:
        schema = {"type": "object", **asdict(self)}
        return Annotated[dict[str, str], AfterValidator(self.check), WithJsonSchema(schema)]


# Of the 50 tags a job may have, some are ours and one is Step Functions' own.
TAGS: Final = Pairs(
    most=40,
    name_characters=128,
    name_pattern=r"^[A-Za-z0-9 _.:/=+@-]+$",
    refused=r"^((AWS|DILOCO):|APPLICATION$)",
    value_characters=256,
    value_pattern=r"^[A-Za-z0-9 _.:/=+@-]*$",
    words="an object of at most 40 tags: names of 1 to 128 and texts of up to 256 letters, digits, spaces "
    "and _.:/=+@-, no name beginning with aws: or diloco:, nor application",
)

ENVIRONMENT: Final = Pairs(
    most=80,
    name_characters=256,
    name_pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
    refused=f"{_SECRETS}|{_TAKEN}",
    value_characters=512,
    value_pattern=r"^[^\x00-\x1f\x7f]*$",
    words="an object of at most 80 variables, each a text of up to 512 characters on one line; no name that "
    "looks like a secret's (the setting secret_arn is for those) or that SageMaker or the run sets itself",
)
