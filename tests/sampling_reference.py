"""The filters in plain float64, token by token, as their sources define them; slow and obvious.

Nucleus: Holtzman et al., arXiv 1904.09751. Typical: Meister et al., arXiv 2202.00666. Epsilon and
eta: Hewitt et al., arXiv 2210.15191. min-p: Nguyen et al., arXiv 2407.01082. top-nσ: Tang et al.,
arXiv 2411.07641. XTC, dynamic temperature, mirostat v2: as llama.cpp computes them. DRY:
text-generation-webui#5677.
"""

import math

SLACK = 1e-6  # probabilities are known to float32: one that equals a threshold reaches it


def surprises(scores: dict[int, float]) -> dict[int, float]:
    largest = max(scores.values())
    total = largest + math.log(sum(math.exp(score - largest) for score in scores.values()))
    return {token: total - score for token, score in scores.items()}


def softmax(scores: dict[int, float]) -> dict[int, float]:
    return {token: math.exp(-surprise) for token, surprise in surprises(scores).items()}


def entropy(probabilities: dict[int, float]) -> float:
    return -sum(p * math.log(p) for p in probabilities.values() if p > 0)


def ranked(scores: dict[int, float]) -> list[int]:
    return sorted(scores, key=lambda token: (-scores[token], token))


def first_of_mass(order: list[int], probabilities: dict[int, float], mass: float) -> list[int]:
    total, chosen = 0.0, []
    for token in order:
        chosen.append(token)
        total += probabilities[token]
        if total >= mass - SLACK:
            break
    return chosen


def temperature(scores, keep, value, spread=0.0, exponent=1.0):
    if spread > 0 and len(scores) > 1:
        share = entropy(softmax(scores)) / math.log(len(scores))
        low = max(0.0, value - spread)
        value = low + (value + spread - low) * share**exponent
    if value == 0:
        return ranked(scores)[:1]
    for token in scores:
        scores[token] /= value
    return list(scores)


def top_k(scores, keep, k):
    return ranked(scores)[: max(k, keep)]


def top_p(scores, keep, p):
    order = ranked(scores)
    return first_of_mass(order, softmax(scores), p) + order[:keep]


def at_least(scores, keep, threshold):
    probabilities = softmax(scores)
    return [t for t in scores if probabilities[t] >= threshold * (1 - SLACK)] + ranked(scores)[
        :keep
    ]


def min_p(scores, keep, share):
    return at_least(scores, keep, share * max(softmax(scores).values()))


def typical_p(scores, keep, mass):
    probabilities = softmax(scores)
    h = entropy(probabilities)
    surprise = surprises(scores)
    order = sorted(scores, key=lambda token: (abs(surprise[token] - h), token))
    return first_of_mass(order, probabilities, mass) + order[:keep]


def epsilon_cutoff(scores, keep, epsilon):
    return at_least(scores, keep, epsilon)


def eta_cutoff(scores, keep, epsilon):
    eta = min(epsilon, math.sqrt(epsilon) * math.exp(-entropy(softmax(scores))))
    return at_least(scores, keep, eta)


def top_n_sigma(scores, keep, n):
    values = list(scores.values())
    mean = sum(values) / len(values)
    sigma = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    bar = max(values) - n * sigma
    return [token for token in scores if scores[token] >= bar] + ranked(scores)[:keep]


def xtc(scores, keep, _probability, threshold):
    """The coin has fallen: with probability 1."""
    probabilities = softmax(scores)
    reach = [token for token in scores if probabilities[token] >= threshold * (1 - SLACK)]
    if not reach:
        return list(scores)
    least = min(scores[token] for token in reach)
    stay = [token for token in scores if scores[token] <= least]
    return stay if len(stay) >= keep else list(scores)


FILTERS = {
    "temperature": temperature,
    "top_k": top_k,
    "top_p": top_p,
    "min_p": min_p,
    "typical_p": typical_p,
    "epsilon_cutoff": epsilon_cutoff,
    "eta_cutoff": eta_cutoff,
    "top_n_sigma": top_n_sigma,
    "xtc": xtc,
}


def kept(logits, steps, keep=1) -> dict[int, float]:
    """The tokens left after all steps (name, parameters...), with their probabilities."""
    scores = {token: float(logit) for token, logit in enumerate(logits) if logit > -math.inf}
    for name, *parameters in steps:
        left = set(FILTERS[name](scores, keep, *parameters))
        scores = {token: score for token, score in scores.items() if token in left}
    return softmax(scores)


def dry(tokens, multiplier, base, allowed, breakers=frozenset()) -> dict[int, float]:
    """What DRY takes from each logit, by comparing every earlier place with the end."""
    longest: dict[int, int] = {}
    for place in range(len(tokens) - 1):
        length = 0
        while length <= place and tokens[place - length] == tokens[-1 - length]:
            if tokens[place - length] in breakers:
                break
            length += 1
        if length >= allowed:
            following = tokens[place + 1]
            longest[following] = max(longest.get(following, 0), length)
    return {t: multiplier * base ** (length - allowed) for t, length in longest.items()}
