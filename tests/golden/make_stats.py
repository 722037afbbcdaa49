"""Expected values for src/stats, from numpy, scipy and statsmodels: python3 make_stats.py > stats.json

Bootstrap bounds are Monte-Carlo values: `tolerance` is about four standard errors of a quantile of 10,000 resamples.
"""
import json

import numpy as np
import scipy
import statsmodels
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

rng = np.random.default_rng(20240607)
RESAMPLES = 100_000


def se(values):
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def bounds(data, statistic, level, error):
    result = stats.bootstrap(data, statistic, n_resamples=RESAMPLES, confidence_level=level, method="percentile", paired=True, vectorized=True, rng=rng)
    ci = result.confidence_interval
    p = (1 - level) / 2
    # standard error of a normal quantile: sqrt(p (1 - p) / B) / density
    quantile_error = np.sqrt(p * (1 - p) / 10_000) / stats.norm.pdf(stats.norm.ppf(p))
    return {"lo": float(ci.low), "hi": float(ci.high), "tolerance": float(4.2 * quantile_error * error + 1e-9)}


def means():
    for n, share in [(3, 0.5), (8, 0.9), (24, 0.75), (24, 0.96), (60, 0.4), (200, 0.8)]:
        values = rng.binomial(12, rng.beta(8 * share, 8 * (1 - share), n)) / 12
        mean = lambda x, axis=-1: np.mean(x, axis=axis)
        yield {"values": values.tolist(), "mean": float(values.mean()), "sd": float(values.std(ddof=1)), **bounds((values,), mean, 0.95, se(values))}


def ratios():
    for n in (10, 24, 80):
        whole = rng.integers(2, 13, n).astype(float)
        part = rng.binomial(whole.astype(int), 0.8).astype(float)
        ratio = lambda p, w, axis=-1: np.sum(p, axis=axis) / np.sum(w, axis=axis)
        value = float(part.sum() / whole.sum())
        yield {"parts": part.tolist(), "wholes": whole.tolist(), "value": value, **bounds((part, whole), ratio, 0.95, se((part - value * whole) / whole.mean()))}


def grid(n, centres, spread):
    ability = rng.normal(0, spread, n)
    return [np.clip(np.round(12 * (centre + ability + rng.normal(0, spread / 2, n))) / 12, 0, 1).tolist() for centre in centres]


def differences():
    formats = grid(24, [0.9, 0.8, 0.78, 0.6, 0.55], 0.1)
    pairs = []
    for a in range(5):
        for b in range(a + 1, 5):
            d = np.array(formats[a]) - np.array(formats[b])
            mean = lambda x, axis=-1: np.mean(x, axis=axis)
            pairs.append({"a": a, "b": b, "value": float(d.mean()), **bounds((d,), mean, 1 - 0.05 / 10, se(d))})
    return {"formats": formats, "pairs": pairs}


def max_t():
    formats = [np.array(f) for f in grid(30, [0.8, 0.7, 0.75, 0.5], 0.12)]
    n = 30
    index = rng.integers(0, n, (RESAMPLES, n))
    t = np.max([np.abs(f[index].mean(axis=1) - f.mean()) / se(f) for f in formats], axis=0)
    critical = float(np.quantile(t, 0.95))
    return {"formats": [f.tolist() for f in formats], "critical": critical, "means": [float(f.mean()) for f in formats], "errors": [se(f) for f in formats]}


def sd_ratio():
    weak, strong = grid(24, [0.9, 0.8, 0.78, 0.6, 0.55], 0.1), grid(24, [0.9, 0.85, 0.87, 0.8, 0.79], 0.05)
    a, b = np.array(weak), np.array(strong)
    index = rng.integers(0, 24, (RESAMPLES, 24))
    sd = lambda run: np.std(run[:, index].mean(axis=2), axis=0, ddof=1)
    draws = sd(a) / sd(b)
    value = float(np.std(a.mean(axis=1), ddof=1) / np.std(b.mean(axis=1), ddof=1))
    lo, hi = np.quantile(draws, [0.025, 0.975])
    return {"a": weak, "b": strong, "value": value, "lo": float(lo), "hi": float(hi), "tolerance": float(0.15 * draws.std()),
            "sd": float(np.std(a.mean(axis=1), ddof=1)), "range": float(np.ptp(a.mean(axis=1)))}


def wilson():
    for k, n in [(0, 1), (1, 1), (0, 2), (2, 2), (0, 24), (24, 24), (12, 24), (1, 30), (7, 9), (300, 1000)]:
        for level in (0.95, 0.995):
            lo, hi = proportion_confint(k, n, alpha=1 - level, method="wilson")
            yield {"successes": k, "n": n, "level": level, "lo": float(lo), "hi": float(hi)}


def ranks():
    for values in [[0.5], [0.2, 0.9], [0.7, 0.7, 0.1], [1, 1, 1, 1], [0.9, 0.8, 0.8, 0.8, 0.1], rng.permutation(9) / 9, rng.integers(0, 4, 12) / 4]:
        values = np.array(values, dtype=float)
        yield {"values": values.tolist(), "competition": stats.rankdata(-values, "min").astype(int).tolist(), "average": stats.rankdata(-values, "average").tolist()}


def spearman():
    for n in (2, 3, 5, 5, 8, 20):
        a, b = rng.integers(0, 2 * n, n) / 7, rng.integers(0, 2 * n, n) / 7
        if len(set(a)) > 1 and len(set(b)) > 1:
            yield {"a": a.tolist(), "b": b.tolist(), "rho": float(stats.spearmanr(a, b).statistic)}


def main():
    sample = np.sort(rng.normal(size=17))
    probabilities = [1e-6, 0.001, 0.0125, 0.025, 0.3, 0.5, 0.8, 0.975, 0.995, 0.9999]
    print(json.dumps({
        "made_with": {"numpy": np.__version__, "scipy": scipy.__version__, "statsmodels": statsmodels.__version__},
        "means": list(means()), "ratios": list(ratios()), "differences": differences(), "max_t": max_t(), "sd_ratio": sd_ratio(),
        "wilson": list(wilson()), "ranks": list(ranks()), "spearman": list(spearman()),
        "quantiles": {"sorted": sample.tolist(), "at": [[q, float(np.quantile(sample, q))] for q in (0, 0.01, 0.025, 0.33, 0.5, 0.975, 1)]},
        "normal": [[p, float(stats.norm.ppf(p))] for p in probabilities],
    }, indent=1))


main()
