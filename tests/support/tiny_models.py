"""Small random models of transformers with a real tokenizer, made in milliseconds."""

from __future__ import annotations

import pytest

TEXT = (
    "Write a question about a place. Text: What is the name of the river, 2,850 km long, that runs through "
    "ten countries and four capitals before it reaches the Black Sea? Where is the"
)
SPECIAL = ["<|endoftext|>", "<|im_end|>", "<s>"]
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
}
PADDING = 7
"""Rows of the model's matrices that no token has."""


def tiny_tokenizer(*, bos=False):
    """Byte-level BPE with special tokens, and one token that is added but not special."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_tokens(["<tool_call>"])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 2)])
    named = {"eos_token": SPECIAL[0], "bos_token": SPECIAL[2]}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


def save_tiny_model(folder, kind="Llama", *, bos=False, **settings):
    """A random model with its tokenizer, in a folder; the folder."""
    import torch
    import transformers

    tokenizer = tiny_tokenizer(bos=bos)
    config = getattr(transformers, f"{kind}Config")(vocab_size=len(tokenizer) + PADDING, **settings)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)  # as they come, all tokens would be about as likely
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


SMALL = {"device": "cpu", "context_tokens": 96, "kept_prompts": 15}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small matrices gain nothing from threads, and threads that wait for a core lose much."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), **SIZES)
