"""sentence-transformers: a model that is compiled by name, on batches of any length.

python examples/libraries/sentence_embeddings.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer, models, util
from transformers import BertConfig, BertModel, BertTokenizerFast
from what_ran import print_what_ran

WORDS = ["the", "a", "cat", "dog", "sits", "runs", "on", "under", "mat", "tree", "while", "slowly", "it", "rains"]


def embedder(folder: Path) -> SentenceTransformer:
    """BERT of two layers on a vocabulary of a few words, mean pooling, unit length."""
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(WORDS) + 5, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    BertModel(config).save_pretrained(folder)
    words = models.Transformer(str(folder))
    return SentenceTransformer(modules=[words, models.Pooling(32), models.Normalize()], device="cpu")


def main() -> None:
    """Encode in eager and compiled, and compare."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        model = embedder(Path(folder))
    sentences = ["the cat sits on the mat", "a dog runs", "it rains while the dog runs slowly under a tree"]
    wanted = model.encode(sentences, convert_to_tensor=True)
    longer = model.encode(sentences * 3, batch_size=4, convert_to_tensor=True)
    model.compile(backend="max_backend", dynamic=True)
    torch.testing.assert_close(model.encode(sentences, convert_to_tensor=True), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        model.encode(sentences * 3, batch_size=4, convert_to_tensor=True), longer, rtol=1e-4, atol=1e-5
    )
    print(f"cosine similarities:\n{util.cos_sim(wanted, wanted)}")
    print_what_ran()


if __name__ == "__main__":
    main()
