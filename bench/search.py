"""Whether a search in rounds finds a better prompt than one choice of as many candidates, by simulation.

    python -m bench.search        # the table of docs/how-to/choose.md; a minute

There are six labels with four texts each. A prompt shows one text a label; its accuracy is 60 % and what its
texts add, with pairs of texts that add half as much. Candidates are right on the same items to a part of 0.7. Both
ways score 24 candidates in all at ε = 1 and get the same units. Only the order of trying is simulated, not a model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

LABELS, TEXTS, CANDIDATES, SHARED, PLAYS = 6, 4, 24, 0.7, 400
COINS = np.random.default_rng(0)
Prompt = tuple[int, ...]
Accuracy = Callable[[Prompt], float]


def world(spread: float) -> Accuracy:
    """The accuracy of each prompt; `spread` is the standard deviation of what one text adds."""
    adds = COINS.normal(0, spread, (LABELS, TEXTS))
    pairs = COINS.normal(0, spread / 2, (LABELS, TEXTS, LABELS, TEXTS)) / LABELS**0.5

    def accuracy(prompt: Prompt) -> float:
        alone = sum(adds[label, text] for label, text in enumerate(prompt))
        together = sum(pairs[i, prompt[i], j, prompt[j]] for i in range(LABELS) for j in range(i))
        return float(0.6 + alone + together)

    return accuracy


def chosen(prompts: list[Prompt], accuracy: Accuracy, units: int) -> Prompt:
    """The winner of a release: permute-and-flip is the noisy maximum with exponential noise."""
    common, right = COINS.random(units), []
    for prompt in prompts:
        luck = np.where(COINS.random(units) < SHARED, common, COINS.random(units))
        right.append(int((luck < accuracy(prompt)).sum()) + COINS.exponential())
    return prompts[int(np.argmax(right))]


def found(accuracy: Accuracy, units: int, rounds: int) -> float:
    """The accuracy of what so many rounds choose; the last part of the units measures."""
    part, each = units // (rounds + 1), CANDIDATES // rounds
    prompts = [tuple(int(text) for text in COINS.integers(0, TEXTS, LABELS)) for _ in range(each)]
    winner = chosen(prompts, accuracy, part)
    for _ in range(rounds - 1):
        near = [
            (*winner[:label], text, *winner[label + 1 :])
            for label in range(LABELS)
            for text in range(TEXTS)
            if text != winner[label]
        ]
        taken = COINS.permutation(len(near))[:each]
        winner = chosen([winner, *(near[number] for number in taken)], accuracy, part)
    return accuracy(winner)


def main() -> None:
    """Prints the table in Markdown, in points with one standard error of the difference."""
    print(
        "| spread of a text | units | one choice | 2 rounds | 3 rounds | 4 rounds |\n|---|---|---|---|---|---|"
    )
    for spread in (0.01, 0.02, 0.03):
        for units in (200, 1000, 4000):
            plays = []
            for _ in range(PLAYS):
                accuracy = world(spread)
                plays.append([100 * found(accuracy, units, rounds) for rounds in (1, 2, 3, 4)])
            results = np.array(plays)
            gains = results[:, 1:] - results[:, :1]
            cells = [
                f"{gain:+.1f} ± {error:.1f}"
                for gain, error in zip(gains.mean(0), gains.std(0) / PLAYS**0.5, strict=True)
            ]
            print(f"| {100 * spread:.0f} | {units:,} | {results[:, 0].mean():.1f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
