"""Which parameters train, and how what was trained is saved.

All of a model's, those that a regular expression names, or low-rank adapters beside a frozen model
(LoRA, arXiv:2106.09685, by peft). Only what trains is exchanged, hashed and shared; of the frozen
rest every replica has its own copy, which `frozen_name` lets the ranks compare.
"""

import re
from pathlib import Path
from typing import Final

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import PreTrainedModel

from trainer.failures import BadModel
from trainer.run_spec import InvalidRunParameters, RunSpec

ALL_LINEAR: Final = "all-linear"  # peft's name for every linear layer but the head


def choose_trainable(model: PreTrainedModel, spec: RunSpec) -> PreTrainedModel:
    """Freeze what does not train; with lora_rank, peft's model around `model`.

    Raises InvalidRunParameters where `trainable` fits no parameter, BadModel where lora_targets does.
    """
    if spec.lora_rank:
        return _with_lora(model, spec)
    if spec.trainable:
        named = dict(model.named_parameters())
        try:
            chosen = {name for name in named if re.search(spec.trainable, name)}
        except re.error as error:
            raise InvalidRunParameters({"trainable": f"is no regular expression: {error}"}) from error
        if not chosen:
            raise InvalidRunParameters(
                {"trainable": f"fits none of the {len(named)} parameters, such as {next(iter(named))}"}
            )
        for name, parameter in named.items():
            parameter.requires_grad_(name in chosen)
    return model


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Save as transformers loads it, or the adapter alone as peft loads it; safetensors either way."""
    model.config.use_cache = True
    if isinstance(model, PeftModel):
        # Left to itself peft asks the hub whether the vocabulary has grown; it can't grow here.
        model.save_pretrained(str(folder), save_embedding_layers=False)
    else:
        model.save_pretrained(folder)


def _with_lora(model: PreTrainedModel, spec: RunSpec) -> PreTrainedModel:
    targets = [name.strip() for name in spec.lora_targets.split(",") if name.strip()]
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        base_model_name_or_path=spec.model_name,
        r=spec.lora_rank,
        lora_alpha=spec.lora_alpha,
        target_modules=ALL_LINEAR if targets == [ALL_LINEAR] else targets,
    )
    model.name_or_path = spec.model_name  # what peft writes down; weights may come from a folder now gone
    try:
        with torch.random.fork_rng(devices=[]):  # leave the caller's random state alone
            torch.manual_seed(spec.seed)
            adapted = get_peft_model(model, config)
    except ValueError as error:
        raise BadModel(f"model_name {spec.model_name}: lora_targets {spec.lora_targets}: {error}") from error
    # It passes on to the model in it whatever it hasn't itself.
    return adapted
