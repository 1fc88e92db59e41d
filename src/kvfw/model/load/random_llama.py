"""A random model of a real architecture, for checks that need no trained weights."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel


def random_llama(
    *, layers: int, heads: int, kv_heads: int, head_dim: int, vocabulary: int = 211, spread: float = 0.2, seed: int = 0
) -> PreTrainedModel:
    """A Llama with random weights in float32 on the CPU. The global random generator is left unchanged.

    The hidden size is ``heads * head_dim``, ``vocabulary`` a number of tokens. ``spread`` is the standard deviation of
    the weights: 0.2 makes a small model's attention far from uniform, so that a wrong token shows in the logits.
    """
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=heads * head_dim,
        intermediate_size=heads * head_dim * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=8192,
        initializer_range=spread,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = LlamaForCausalLM(config).eval()
    return model.requires_grad_(False)
