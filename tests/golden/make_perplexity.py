"""Perplexity of random id sequences under two of the tiny models, by llama-perplexity's definition.

    pip install gguf numpy
    python3 tests/golden/make_perplexity.py ../shared/golden/reference.py > tests/golden/perplexity.json

REFERENCE.py gives the log-probabilities, in float32 from the dequantized weights; all sums here are in float64.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
CHUNK = 32
# model, start token that it asks for, vocabulary
MODELS = (("tiny-llama", None, 286), ("tiny-gemma3", 2, 384))


def main():
    random = np.random.default_rng(7)
    out = []
    for name, bos, vocab in MODELS:
        ids = [int(i) for i in random.integers(6, vocab, 5 * CHUNK + 11)]
        whole = ([] if bos is None else [bos]) + ids
        chunks = [whole[at : at + CHUNK] for at in range(0, len(whole) - CHUNK + 1, CHUNK)]
        if bos is not None:
            chunks = [[bos] + chunk[1:] for chunk in chunks]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as cases:
            json.dump([{"name": str(i), "ids": chunk} for i, chunk in enumerate(chunks)], cases)
            cases.flush()
            run = [sys.executable, sys.argv[1], str(HERE / f"{name}.gguf"), cases.name]
            scored = json.loads(subprocess.run(run, check=True, capture_output=True).stdout)
        # logprobs[i] is that of token i + 1; tokens CHUNK / 2 + 1 and later count.
        nll = -np.array([case["logprobs"][CHUNK // 2 :] for case in scored], dtype=np.float64).ravel()
        perplexity = float(np.exp(nll.mean()))
        error = float(np.sqrt(nll.var() / (len(nll) - 1)) * perplexity)
        out.append({"model": name, "bos": bos, "chunk": CHUNK, "ids": ids, "count": len(nll), "perplexity": perplexity, "error": error})
    print(json.dumps(out))


if __name__ == "__main__":
    main()
