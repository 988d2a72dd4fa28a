import math

import numpy as np
import pytest

from dpfewshot.audit.influence import influence_finding, influence_of, influences
from dpfewshot.errors import BackendError, InvalidTask
from dpfewshot.prompts.few_shot import PromptFormat
from dpfewshot.tasks import MIT_G
from tests.support.notes import FORMAT, GLAD, Reader, demonstration


def majority(_shown: list[int], moods: list[int], _asked: int) -> float:
    """Laplace's rule of succession."""
    return (1 + moods.count(GLAD)) / (2 + len(moods))


def last_one(_shown: list[int], moods: list[int], _asked: int) -> float:
    return 0.8 if moods and moods[-1] == GLAD else 0.2


SHOWN = [demonstration(0), demonstration(1), demonstration(2, "Sad")]


def test_influence_over_labels_by_hand() -> None:
    """Two of three moods are glad: p is 3/5, 2/5; without a glad one 2/4, without the sad one 3/4, 1/4."""
    found = influences(FORMAT, Reader(majority), SHOWN, ["note07", "note08"])
    glad, sad = math.log((1 / 2) / (2 / 5)), math.log((2 / 5) / (1 / 4))
    assert found == pytest.approx(np.array([[glad, glad], [glad, glad], [sad, sad]]), rel=1e-5)
    zero_shot = influences(FORMAT, Reader(majority), SHOWN[:1], ["note07"])
    assert zero_shot == pytest.approx(math.log((1 / 2) / (1 / 3)), rel=1e-5)


def test_influence_over_the_vocabulary_is_of_every_token_and_not_less() -> None:
    """Every mood is a token of its own here, and nothing else follows: the same."""
    labels, vocabulary = (
        influences(FORMAT, Reader(majority), SHOWN, ["note07"], over=over)
        for over in ("labels", "vocabulary")
    )
    assert vocabulary == pytest.approx(labels, rel=1e-5)


def test_the_position_of_a_demonstration_counts() -> None:
    alike = [demonstration(0, "Sad"), demonstration(1, "Sad"), demonstration(2)]
    found = influences(FORMAT, Reader(last_one), alike, ["note07"])[:, 0]
    assert found == pytest.approx([0, 0, math.log(4)], rel=1e-5)


def test_calibration_takes_away_what_no_text_explains() -> None:
    """The majority moves every text's answer alike: calibrated, no demonstration has any influence."""
    found = influences(FORMAT, Reader(majority), SHOWN, ["note07"], over="calibrated labels")
    assert found == pytest.approx(0, abs=1e-6)
    heedless = Reader(lambda *_: 0.7)
    assert influences(FORMAT, heedless, SHOWN, ["note07"]) == pytest.approx(0, abs=1e-9)


def test_influence_of_distributions_with_impossible_answers() -> None:
    never = -math.inf
    one, other = np.array([[0.0, never], [-1.0, -2.0]]), np.array([[-0.5, never], [-1.0, never]])
    assert influence_of(one, other).tolist() == [0.5, math.inf]


def test_the_finding_averages_over_prompts_and_positions() -> None:
    finding = influence_finding([np.array([[1.0, 3.0], [0.0, 0.0]]), np.array([[2.0, 4.0], [1.0, 1.0]])])
    assert finding.figure("mean influence").value == pytest.approx(1.5)
    assert finding.figure("largest influence").value == 4
    assert [figure.value for figure in finding.figures[2:]] == [2.5, 0.5]
    assert (finding.confidential, finding.verdict, finding.details["texts"]) == (True, "informative", 4)
    low, high = finding.figure("mean influence").low, finding.figure("mean influence").high
    assert low == 0  # no influence is negative
    assert high == pytest.approx(1.5 + 12.7062 * 0.5)  # t of one degree of freedom; a standard error of 1/2
    assert influence_finding([np.array([[1.0]])]).figure("mean influence").low is None


def test_what_has_no_influence_to_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="over must be one of"):
        influences(FORMAT, Reader(majority), SHOWN, ["note07"], over="words")  # type: ignore[arg-type]
    for shown, texts in (([], ["note07"]), (SHOWN, [])):
        with pytest.raises(ValueError, match="at least one"):
            influences(FORMAT, Reader(majority), shown, texts)
    with pytest.raises(ValueError, match="same number"):
        influence_finding([])
    with pytest.raises(ValueError, match="same number"):
        influence_finding([np.ones((1, 2)), np.ones((2, 2))])
    with pytest.raises(BackendError, match="infinite"):
        influence_finding([np.array([[math.inf]])])
    with pytest.raises(InvalidTask, match="free"):
        influences(MIT_G, Reader(majority), SHOWN, ["note07"])


def test_free_labels_have_influence_over_the_vocabulary() -> None:
    free = PromptFormat("", "Note", "Mood")
    found = influences(free, Reader(majority), SHOWN[:1], ["note07"], over="vocabulary")
    assert found == pytest.approx(math.log((1 / 2) / (1 / 3)), rel=1e-5)


def test_the_interval_of_a_mean_influence() -> None:
    prompts = [[[1.0, 2.0], [0.5, 0.25]], [[3.0, 2.5], [0.1, 0.2]], [[0.1, 0.3], [1.5, 0.0]]]
    figure = influence_finding([np.array(each) for each in prompts]).figures[0]
    assert (figure.value, figure.low) == (pytest.approx(0.9541666666666667, rel=1e-11), 0.0)
    assert figure.high == pytest.approx(2.1657144835255857, rel=1e-11)
    apart = influence_finding([np.array(each) + 9 for each in prompts]).figures[0]
    assert apart.low == pytest.approx(9 + 2 * figure.value - figure.high, rel=1e-11)


@pytest.mark.model
def test_on_a_real_model_the_vocabulary_tells_more_than_the_labels() -> None:
    import dpfewshot as dpf

    task = dpf.Task("mood", "Write a note.", "Mood", "Note", ("Glad", "Sad"))
    shown = [demonstration(0), demonstration(1, "Sad")]
    model = dpf.backends.packaged_model_path()
    with dpf.backends.LlamaCpp(model, context_tokens=128, threads=1) as backend:
        labels = influences(task, backend, shown, ["It rains."])
        vocabulary = influences(task, backend, shown, ["It rains."], over="vocabulary")
    assert (labels > 0).all()
    assert (vocabulary > labels).all()
