"""Writes quants.bin: random blocks of every accepted format and their values by the gguf package.

    pip install gguf && python kernels/tests/golden/make_quants.py

For each format: type id (u32), number of blocks (u32), the blocks, the values (f32); little endian.
Codes and sub-scales are random bytes; f16 fields are random finite halves.
"""

import struct
from pathlib import Path

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

# byte offsets of the f16 fields in a block
HALVES = {
    T.F32: None, T.F16: None, T.BF16: None,
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}

rng = np.random.default_rng(20240607)
out = b""
for kind, halves in HALVES.items():
    values, size = GGML_QUANT_SIZES[kind]
    blocks = 256 if values == 1 else 16 if values == 32 else 4
    if halves is None:
        floats = rng.standard_normal(blocks).astype(np.float32)
        if kind == T.F32:
            raw = floats.view(np.uint8)
        elif kind == T.F16:
            raw = floats.astype(np.float16).view(np.uint8)
        else:
            raw = (floats.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    else:
        raw = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
        for at in halves:
            raw[:, at : at + 2] = rng.standard_normal(blocks).astype(np.float16).view(np.uint8).reshape(-1, 2)
        raw = raw.reshape(-1)
    expected = np.ascontiguousarray(quants.dequantize(raw, kind), dtype="<f4").reshape(-1)
    assert expected.size == blocks * values and np.isfinite(expected).all()
    out += struct.pack("<II", kind, blocks) + raw.tobytes() + expected.tobytes()
Path(__file__).with_name("quants.bin").write_bytes(out)
