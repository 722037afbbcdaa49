"""The Python half of peers.sh.

    peers.py llama [--no-extra-buffers] MODEL.gguf ...   llama_batched.py of $PEERS with load time and peak memory added
    peers.py table WEAKLINK.jsonl LLAMA.jsonl [...]      medians and ratios as a Markdown table
"""
import contextlib
import io
import json
import os
import statistics
import sys
import time


def peak_rss():
    with open("/proc/self/status") as status:
        return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")), None)


def llama(args):
    sys.path.insert(0, os.environ["PEERS"])
    import llama_batched
    import llama_cpp

    extra_buffers = "--no-extra-buffers" not in args
    load = llama_cpp.llama_model_load_from_file
    took = []

    def timed(path, params):
        params.use_extra_bufts = extra_buffers
        begun = time.perf_counter()
        model = load(path, params)
        took.append(time.perf_counter() - begun)
        if not model:
            sys.exit(f"llama.cpp cannot load {path.decode()}")
        return model

    llama_cpp.llama_model_load_from_file = timed
    sys.argv = ["llama_batched.py"] + [a for a in args if a != "--no-extra-buffers"]
    lines = io.StringIO()
    with contextlib.redirect_stdout(lines):
        llama_batched.main()
    for line in lines.getvalue().splitlines():
        print(json.dumps(json.loads(line) | {"load_seconds": took[0], "peak_rss_bytes": peak_rss()}))


def table(weaklink, llama, *notes):
    def rows(path):
        with open(path) as lines:
            return [json.loads(line) for line in lines]

    def median(rows, column, **wanted):
        values = [r[column] for r in rows if all(r[k] == v for k, v in wanted.items()) and r[column] is not None]
        return statistics.median(values) if values else None

    ours, theirs = rows(weaklink), rows(llama)
    tests = []
    for shared in (False, True):
        for batch in sorted({r["batch"] for r in ours}):
            kind = ", shared prefix" if shared else ""
            for column, name in (("prefill_tps", "prefill"), ("decode_tps", "decode")):
                tests.append((f"{name}, batch {batch}{kind}, t/s", column, 1, {"batch": batch, "shared_prefix": shared}))
    tests += [("load, s", "load_seconds", 1, {}), ("peak memory, MiB", "peak_rss_bytes", 2**20, {})]
    print(f"{ours[0]['model']} ({ours[0]['quant']}), {ours[0]['isa']}, {ours[0]['threads']} threads,"
          f" pp {ours[0]['pp']}, tg {ours[0]['tg']}; medians")
    if "--no-extra-buffers" in notes:
        print("llama.cpp without its repacked buffers: its build cannot run with them on this machine")
    print("\n| | weaklink | llama.cpp | ratio |\n|---|---:|---:|---:|")
    for name, column, unit, wanted in tests:
        a, b = median(ours, column, **wanted), median(theirs, column, **wanted)
        shown = [f"{v / unit:.2f}" if v is not None else "–" for v in (a, b)]
        print(f"| {name} | {shown[0]} | {shown[1]} | {f'{a / b:.2f}' if a is not None and b else '–'} |")


if __name__ == "__main__":
    {"llama": lambda *a: llama(list(a)), "table": table}[sys.argv[1]](*sys.argv[2:])
