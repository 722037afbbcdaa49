"""Makes the tiny random models of this folder and their reference numbers.

    pip install gguf numpy safetensors
    python3 tests/golden/make_tiny.py ../shared/golden/reference.py

One GGUF file a family (llama, qwen2, qwen3, gemma3), small enough to commit, with a vocabulary that is a valid
tokenizer. REFERENCE.py computes the log-probabilities of random id sequences in float32 from the dequantized weights.
tiny-qwen2-hf/ holds the dequantized weights of tiny-qwen2.gguf under their Hugging Face names, so the same numbers
hold for it. The seed is fixed: the same versions of numpy and gguf give the same bytes.

In a llama GGUF file the rows of attn_q and attn_k are ordered for interleaved rotary pairs (2i, 2i+1); a Hugging Face
llama folder has them in halves (i, i + head_dim / 2). The other families use halves in both formats.
"""
import json
import pathlib
import subprocess
import sys

import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf import GGUFWriter, quants
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
HIDDEN, CONTEXT, EPS = 64, 256, 1e-6
CASE_LENGTHS = (5, 17, 40, 90)
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA_TURNS = (
    "{{ bos_token }}{% for message in messages %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MERGES = (
    "Ġ t|h e|i n|r e|o n|Ġt he|e r|Ġ a|n d|Ġa nd|Ġ s|a t|o r|e n|i s|o u|Ġ w|Ġ o|Ġo f|i t|Ġ i|e s|in g|l l|Ġi s|o w|n er"
).split("|")
PIECES = "▁t he ▁the in re on er ▁a nd ▁and ▁s at or en is ou ▁w ▁o ▁of it ▁i es ing ll ▁is ow".split()
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# What a pre-tokenizer named "qwen2" splits text by, as its tokenizer.json states it.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_characters():
    """The printable character that stands for each byte in byte-level BPE."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    table = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}
    return [table[b] for b in range(256)]


def bpe_vocabulary():
    tokens = byte_characters() + [m.replace(" ", "") for m in MERGES]
    assert len(set(tokens)) == len(tokens)
    return tokens + SPECIALS, [NORMAL] * len(tokens) + [CONTROL] * len(SPECIALS)


def spm_vocabulary():
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    types = [CONTROL, CONTROL, CONTROL, UNKNOWN, CONTROL, CONTROL]
    tokens += [f"<0x{b:02X}>" for b in range(256)]
    types += [BYTE] * 256
    pieces = PIECES + ["▁", "\n"] + [chr(c) for c in range(33, 127)]
    tokens += pieces
    types += [NORMAL] * len(pieces)
    scores = [0.0] * (len(tokens) - len(pieces)) + [-float(i) for i in range(len(pieces))]
    return tokens, types, scores


class Model:
    """Random weights in the formats asked for, and the file they go to."""

    def __init__(self, arch, seed, *, layers, heads, kv_heads, head_dim, ff, vocab):
        self.name, self.arch, self.layers, self.vocab = f"tiny-{arch}", arch, layers, vocab
        self.heads, self.kv_heads, self.head_dim, self.ff = heads, kv_heads, head_dim, ff
        self.random = np.random.default_rng(seed)
        self.writer = GGUFWriter(HERE / f"{self.name}.gguf", arch)
        self.dequantized = {}

    def tensor(self, name, shape, fmt, std, mean=0.0):
        values = (mean + std * self.random.standard_normal(shape)).astype(np.float32)
        data = quants.quantize(values, fmt)
        self.writer.add_tensor(name, data, raw_dtype=None if fmt in (Q.F32, Q.F16) else fmt)
        self.dequantized[name] = quants.dequantize(data, fmt).astype(np.float32).reshape(shape)

    def matrix(self, name, rows, cols, fmt, gain=1.3):
        self.tensor(name + ".weight", (rows, cols), fmt, gain / np.sqrt(cols))

    def norm(self, name, size):
        self.tensor(name + ".weight", (size,), Q.F32, 0.2, 1.0)

    def weights(self, embedding, formats, *, tied, qkv_bias=False, qk_norm=False, post_norms=False):
        """formats: of attn_q, attn_k, attn_v, attn_output, ffn_gate, ffn_up, ffn_down, rotated by layer."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.tensor("token_embd.weight", (self.vocab, HIDDEN), embedding, 0.35)
        for layer in range(self.layers):
            p = f"blk.{layer}."
            fmt = formats[layer % len(formats) :] + formats[: layer % len(formats)]
            self.norm(p + "attn_norm", HIDDEN)
            for (name, rows), f in zip((("attn_q", q), ("attn_k", kv), ("attn_v", kv)), fmt):
                self.matrix(p + name, rows, HIDDEN, f)
                if qkv_bias:
                    self.tensor(p + name + ".bias", (rows,), Q.F32, 0.5)
            if qk_norm:
                self.norm(p + "attn_q_norm", self.head_dim)
                self.norm(p + "attn_k_norm", self.head_dim)
            self.matrix(p + "attn_output", HIDDEN, q, fmt[3])
            if post_norms:
                self.norm(p + "post_attention_norm", HIDDEN)
            self.norm(p + "ffn_norm", HIDDEN)
            self.matrix(p + "ffn_gate", self.ff, HIDDEN, fmt[4])
            self.matrix(p + "ffn_up", self.ff, HIDDEN, fmt[5])
            self.matrix(p + "ffn_down", HIDDEN, self.ff, fmt[6])
            if post_norms:
                self.norm(p + "post_ffw_norm", HIDDEN)
        self.norm("output_norm", HIDDEN)
        if not tied:
            self.tensor("output.weight", (self.vocab, HIDDEN), embedding, 0.35)

    def metadata(self, *, rope_base, window=None):
        w = self.writer
        w.add_name(self.name)
        w.add_context_length(CONTEXT)
        w.add_embedding_length(HIDDEN)
        w.add_block_count(self.layers)
        w.add_feed_forward_length(self.ff)
        w.add_head_count(self.heads)
        w.add_head_count_kv(self.kv_heads)
        w.add_layer_norm_rms_eps(EPS)
        w.add_rope_freq_base(rope_base)
        w.add_vocab_size(self.vocab)
        if self.head_dim * self.heads != HIDDEN:
            w.add_key_length(self.head_dim)
            w.add_value_length(self.head_dim)
        if self.arch == "llama":
            w.add_rope_dimension_count(self.head_dim)
        if window:
            w.add_sliding_window(window)

    def byte_level_tokenizer(self, pre):
        tokens, types = bpe_vocabulary()
        w, first = self.writer, len(tokens) - len(SPECIALS)
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre(pre)
        w.add_token_list(tokens)
        w.add_token_types(types)
        w.add_token_merges(MERGES)
        w.add_bos_token_id(first + 1)
        w.add_eos_token_id(first + 2)
        w.add_pad_token_id(first)
        w.add_add_bos_token(False)
        w.add_chat_template(CHATML)

    def sentencepiece_tokenizer(self):
        tokens, types, scores = spm_vocabulary()
        w = self.writer
        w.add_tokenizer_model("llama")
        w.add_tokenizer_pre("default")
        w.add_token_list(tokens)
        w.add_token_scores(scores)
        w.add_token_types(types)
        w.add_pad_token_id(0)
        w.add_eos_token_id(1)
        w.add_bos_token_id(2)
        w.add_unk_token_id(3)
        w.add_add_bos_token(True)
        w.add_add_eos_token(False)
        w.add_add_space_prefix(False)
        w.add_chat_template(GEMMA_TURNS)

    def close(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()

    def references(self, script):
        cases = [
            {"name": f"{n} ids", "ids": [int(i) for i in self.random.integers(0, self.vocab, n)]} for n in CASE_LENGTHS
        ]
        path = HERE / f"{self.name}-cases.json"
        path.write_text(json.dumps(cases))
        run = [sys.executable, script, str(HERE / f"{self.name}.gguf"), str(path)]
        (HERE / f"{self.name}-logits.json").write_bytes(subprocess.run(run, check=True, capture_output=True).stdout)
        path.unlink()


def write_hf_folder(model):
    """The weights of a qwen2 Model as a Hugging Face folder."""
    folder = HERE / f"{model.name}-hf"
    folder.mkdir(exist_ok=True)
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    parts = {
        "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }
    for name in model.dequantized:
        if name.startswith("blk."):
            _, layer, part, kind = name.split(".")
            names[name] = f"model.layers.{layer}.{parts[part]}.{kind}"
    weights = folder / "model.safetensors"
    save_file({names[n]: v for n, v in model.dequantized.items()}, weights, {"format": "pt"})
    weights.chmod(0o644)
    tokens, _ = bpe_vocabulary()
    first = len(tokens) - len(SPECIALS)
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "float32", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": model.ff, "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads, "rms_norm_eps": EPS,
        "rope_theta": 1000000.0, "max_position_embeddings": CONTEXT, "vocab_size": model.vocab,
        "tie_word_embeddings": True, "use_sliding_window": False, "bos_token_id": first, "eos_token_id": first + 2,
    }
    added = [
        {"id": first + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True} for i, t in enumerate(SPECIALS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN2_SPLIT}, "behavior": "Isolated", "invert": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(tokens[:first])}, "merges": MERGES,
        },
    }
    tokenizer_config = {
        "tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "unk_token": None, "model_max_length": CONTEXT, "chat_template": CHATML,
        "added_tokens_decoder": {str(a["id"]): {k: v for k, v in a.items() if k != "id"} for a in added},
    }
    generation = {"eos_token_id": [first + 2, first], "pad_token_id": first}
    for name, value in (("config", config), ("tokenizer", tokenizer), ("tokenizer_config", tokenizer_config),
                        ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def main():
    script = sys.argv[1]
    bpe, spm = len(bpe_vocabulary()[0]), len(spm_vocabulary()[0])
    q8, q4, f16 = Q.Q8_0, Q.Q4_0, Q.F16

    llama = Model("llama", 1, layers=3, heads=4, kv_heads=2, head_dim=16, ff=96, vocab=bpe)
    llama.metadata(rope_base=10000.0)
    llama.byte_level_tokenizer("smollm")
    llama.weights(q8, [q8, q4, f16, q4, q8, q4, q8], tied=False)

    qwen2 = Model("qwen2", 2, layers=3, heads=2, kv_heads=1, head_dim=32, ff=64, vocab=bpe)
    qwen2.metadata(rope_base=1000000.0)
    qwen2.byte_level_tokenizer("qwen2")
    qwen2.weights(f16, [q8, q4, q8, f16, q8, q4, q8], tied=True, qkv_bias=True)

    qwen3 = Model("qwen3", 3, layers=3, heads=4, kv_heads=2, head_dim=32, ff=64, vocab=bpe)
    qwen3.metadata(rope_base=1000000.0)
    qwen3.byte_level_tokenizer("qwen2")
    qwen3.weights(q8, [q4, q8, f16, q4, q8, q4, q8], tied=True, qk_norm=True)

    gemma3 = Model("gemma3", 4, layers=7, heads=3, kv_heads=1, head_dim=32, ff=32, vocab=spm)
    gemma3.metadata(rope_base=1000000.0, window=16)
    gemma3.sentencepiece_tokenizer()
    gemma3.weights(q8, [q4, q8, q4, q4, q4, q4, q4], tied=True, qk_norm=True, post_norms=True)

    for model in (llama, qwen2, qwen3, gemma3):
        model.close()
        model.references(script)
    write_hf_folder(qwen2)


if __name__ == "__main__":
    main()
