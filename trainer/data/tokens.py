"""Texts to token ids, each document closed by the end-of-sequence token.

Bytes go straight through numpy; any other tokenizer is called on many texts at once, which its
threads share.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from transformers import ByT5Tokenizer

from trainer.data.formats import Messages
from trainer.failures import BadDataSet
from trainer.model import BYTE_OFFSET

Ids = npt.NDArray[np.int32]

BYTE_END: Final = 1  # ByT5's end of sequence


class Unusable(Exception):
    """This one text can't be tokenised; the message says why."""


class Tokens:
    """`tokenizer` as documents need it: a transformers tokenizer with an end-of-sequence token.

    Raises BadDataSet where it has none, since documents could not be told apart.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.are_bytes: Final = isinstance(tokenizer, ByT5Tokenizer)
        if tokenizer.eos_token_id is None:
            raise BadDataSet(
                "the tokenizer has no end-of-sequence token to put between documents: set its eos_token"
            )
        # What shows that another tokenizer is in use, if not every difference.
        self.identity: Final = [
            len(tokenizer),
            tokenizer.eos_token_id,
            getattr(tokenizer, "chat_template", None),
        ]
        self._end = np.array([tokenizer.eos_token_id], dtype=np.int32)

    def text(self, value: str | Messages) -> str:
        """The text of a row; chat messages go through the chat template.

        Raises BadDataSet where there is no template, Unusable where it refuses these messages.
        """
        if isinstance(value, str):
            return value
        if not getattr(self._tokenizer, "chat_template", None):
            raise BadDataSet(
                "a row holds chat messages, and the tokenizer has no chat template: take a chat model's "
                "tokenizer, or set text_field to a field of plain text"
            )
        from jinja2 import TemplateError  # here, since only chats need it

        try:
            text = str(self._tokenizer.apply_chat_template(value, tokenize=False))
            text.encode()
        except UnicodeEncodeError as error:  # JSON can write half a surrogate pair
            raise Unusable("its messages are not Unicode text") from error
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise Unusable(f"the chat template refuses it: {error}") from error
        if not text.strip():
            raise Unusable("the chat template makes nothing of it")
        return text

    def encode(self, texts: Sequence[str], ends: Sequence[bool]) -> list[Ids]:
        """Token ids of each text, int32, with the end-of-sequence token where `ends` says so."""
        if self.are_bytes:
            ids = [np.frombuffer(t.encode(), dtype=np.uint8).astype(np.int32) + BYTE_OFFSET for t in texts]
        else:
            found = self._tokenizer(
                list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
            )["input_ids"]
            ids = [np.asarray(one, dtype=np.int32) for one in found]
        return [np.append(one, self._end) if end else one for one, end in zip(ids, ends, strict=True)]
