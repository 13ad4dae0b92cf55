"""The model and the tokenizer of a run, ready to train.

Any causal language model that transformers has code for. Its own code is never run
(trust_remote_code), its weights are read from safetensors alone. In float32: an outer step of 1e-4
would be lost to bfloat16's rounding; autocast does the fast arithmetic.
"""

import threading
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import is_flash_attn_2_available

from trainer.adapters import choose_trainable
from trainer.failures import BadModel
from trainer.model import BUILT_IN, build_model, build_tokenizer
from trainer.model_source import model_folder
from trainer.run_spec import RunSpec

BYTES: Final = "bytes"  # the tokenizer_name of the built-in one


# transformers changes its own classes for as long as it loads a model: two at once leave them changed,
# and weights untied ever after. Only tests have several replicas in one process.
_ONE_AT_A_TIME: Final = threading.Lock()


def load_tokenizer(spec: RunSpec, scratch: Path) -> PreTrainedTokenizerBase:
    """The run's tokenizer: the byte tokenizer, the model's own, or that of another folder.

    Raises BadModel where there is none. `scratch` as model_source.model_folder's.
    """
    if spec.tokenizer_name == BYTES or (not spec.tokenizer_name and spec.model_name in BUILT_IN):
        return build_tokenizer()
    parameter = "tokenizer_name" if spec.tokenizer_name else "model_name"
    name = spec.tokenizer_name or spec.model_name
    with model_folder(parameter, name, scratch, weights=False) as folder:
        try:
            found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except (OSError, ValueError, KeyError, ImportError, TypeError) as error:
            raise BadModel(
                f"{parameter} {name}: no tokenizer can be read from it; name one with tokenizer_name, "
                f"{BYTES!r} for bytes ({_first_line(error)})"
            ) from error
    if not len(found):
        raise BadModel(f"{parameter} {name}: its tokenizer has no vocabulary; name one with tokenizer_name")
    return found


def load_model(
    spec: RunSpec, tokenizer: PreTrainedTokenizerBase, device: torch.device, scratch: Path
) -> PreTrainedModel:
    """The run's model in float32 on `device`, with the parameters chosen that train.

    With lora_rank it is peft's model around it. Raises BadModel naming what is wrong with it.
    """
    with _ONE_AT_A_TIME:
        return _load_model(spec, tokenizer, device, scratch)


def _load_model(
    spec: RunSpec, tokenizer: PreTrainedTokenizerBase, device: torch.device, scratch: Path
) -> PreTrainedModel:
    if spec.model_name in BUILT_IN:
        model: PreTrainedModel = build_model(spec.model_name, seq_len=spec.seq_len, seed=spec.seed)
        _check_sizes(spec, model.config, tokenizer)
    else:
        with model_folder("model_name", spec.model_name, scratch, weights=not spec.from_scratch) as folder:
            model = _from_folder(spec, folder, tokenizer, device)
    model.config.use_cache = False  # keys and values for generation; save_model puts it back
    if spec.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise BadModel(
                f"model_name {spec.model_name}: {type(model).__name__} has no gradient checkpointing"
            )
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model = choose_trainable(model, spec).to(device)
    model.train()
    if spec.torch_compile:
        model.compile()  # in place: names, class and what is saved stay the same
    return model


def attention_implementation(
    *, cuda: bool, flash_importable: bool, model_has_flash: bool, model_has_sdpa: bool
) -> str:
    """The fastest attention that this machine and this model both have, by transformers' name for it."""
    if cuda and flash_importable and model_has_flash:
        return "flash_attention_2"
    return "sdpa" if model_has_sdpa else "eager"


def _from_folder(
    spec: RunSpec, folder: Path, tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> PreTrainedModel:
    what = f"model_name {spec.model_name}"
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise BadModel(
            f"{what}: no configuration (config.json) of a model that transformers knows: {_first_line(error)}"
        ) from error
    kind = _causal_class(what, config)
    _check_sizes(spec, config, tokenizer)
    options = {
        "dtype": torch.float32,
        "trust_remote_code": False,
        "attn_implementation": attention_implementation(
            cuda=device.type == "cuda",
            flash_importable=is_flash_attn_2_available(),
            model_has_flash=bool(getattr(kind, "_supports_flash_attn", False)),
            model_has_sdpa=bool(getattr(kind, "_supports_sdpa", False)),
        ),
    }
    if not spec.from_scratch:
        return _with_weights(what, folder, config, options)
    with torch.random.fork_rng(devices=[]):  # leave the caller's random state alone
        torch.manual_seed(spec.seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, **options)
    return model


def _with_weights(
    what: str, folder: Path, config: PreTrainedConfig, options: dict[str, Any]
) -> PreTrainedModel:
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, config=config, use_safetensors=True, output_loading_info=True, **options
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise BadModel(f"{what}: its weights can't be loaded: {_first_line(error)}") from error
    missing = sorted(found["missing_keys"])
    if missing:  # transformers would draw them at random and only warn
        raise BadModel(
            f"{what}: its files lack {len(missing)} weights of {type(model).__name__}, first {missing[0]}: "
            "save the whole causal language model, its head too"
        )
    loaded: PreTrainedModel = model
    return loaded


def _causal_class(what: str, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """transformers' class that predicts the next token. Raises BadModel for a model of another kind."""
    kind = AutoModelForCausalLM._model_mapping.get(type(config), None)
    named = list(getattr(config, "architectures", None) or [])
    if kind is None or config.is_encoder_decoder or any(name.endswith("ForMaskedLM") for name in named):
        shown = ", ".join(named) or config.model_type
        raise BadModel(f"{what}: {shown} is no causal language model, one that predicts the next token")
    if isinstance(kind, tuple):
        kind = kind[0]
    found: type[PreTrainedModel] = kind
    return found


def _check_sizes(spec: RunSpec, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    text = config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None)
    if longest is not None and spec.seq_len > longest:
        raise BadModel(
            f"model_name {spec.model_name}: takes at most {longest} tokens, and seq_len is {spec.seq_len}"
        )
    if len(tokenizer) > text.vocab_size:
        which = spec.tokenizer_name or "beside it"
        raise BadModel(
            f"model_name {spec.model_name}: knows {text.vocab_size} tokens, and the tokenizer {which} has "
            f"{len(tokenizer)}: name the model's own as tokenizer_name"
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
