"""Statistics of reports against scipy, and against values that one can compute by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.report.comparison import compare, effects
from rlx.report.curves import over_seeds, thin
from rlx.report.data import Collection, Curve, Run
from rlx.report.groups import group
from rlx.report.statistics import (
    band,
    estimate,
    estimate_improvement,
    gap_of,
    improvement,
    iqm,
    iqm_of,
    mean,
    mean_of,
    median_of,
    percentiles,
    profile_of,
    resample,
    smallest_p,
)

stats = pytest.importorskip("scipy.stats", reason="scipy comes with the dev extra")
RNG = np.random.default_rng(7)


@pytest.mark.parametrize("n", [4, 8, 20])
def test_the_iqm_is_the_trimmed_mean_of_scipy_where_a_quarter_is_whole(n: int) -> None:
    values = RNG.normal(size=n)
    assert float(iqm(values)) == pytest.approx(stats.trim_mean(values, 0.25))


def test_the_iqm_weighs_fractions_of_runs() -> None:
    assert float(iqm(np.array([5.0]))) == 5.0
    assert float(iqm(np.array([1.0, 3.0]))) == 2.0
    assert float(iqm(np.array([0.0, 1.0, 5.0]))) == pytest.approx((0.25 * 0 + 1 + 0.25 * 5) / 1.5)
    assert float(iqm(np.array([100.0, 1.0, 2.0, 3.0, -50.0]))) == pytest.approx((0.75 + 2 + 0.75 * 3) / 2.5)


def test_aggregates_by_hand() -> None:
    scores = [np.array([0.0, 1.0]), np.array([0.5, 2.5])]
    assert float(mean_of(scores)) == pytest.approx((0.5 + 1.5) / 2)
    assert float(median_of(scores)) == pytest.approx(1.0)  # of the means 0.5 and 1.5
    assert float(median_of([np.array([1.0, 2.0, 9.0])])) == 2.0  # of runs, where there is one task
    assert float(gap_of(scores)) == pytest.approx((0.5 + 0.25) / 2)  # 2.5 counts as 1
    assert float(iqm_of(scores)) == pytest.approx(0.75)


def test_the_profile_is_the_share_above() -> None:
    profile = profile_of(np.array([-1.0, 0.0, 0.6, 3.0]))([np.array([0.0, 1.0]), np.array([0.5, 2.5])])
    assert profile.tolist() == [1.0, 0.75, 0.5, 0.0]


def test_the_probability_of_improvement_is_mann_whitneys_u() -> None:
    x, y = RNG.normal(0.3, 1, 9).round(1), RNG.normal(0, 1, 7).round(1)  # with ties
    u = stats.mannwhitneyu(x, y).statistic
    assert float(improvement([x], [y])) == pytest.approx(u / (len(x) * len(y)))
    assert float(improvement([x], [y])) + float(improvement([y], [x])) == pytest.approx(1)
    assert float(improvement([x, np.array([1.0])], [y, np.array([0.0])])) == pytest.approx((u / 63 + 1) / 2)


def test_intervals_are_those_of_scipys_bootstrap() -> None:
    values = RNG.normal(size=12)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=1).confidence_interval
    ours = estimate([values], mean_of, draws=20_000)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)
    theirs = stats.bootstrap((values,), lambda v, axis: iqm(np.moveaxis(v, axis, -1)), n_resamples=20_000,
                             method="percentile", rng=1).confidence_interval  # fmt: skip
    ours = estimate([values], iqm_of, draws=20_000)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.03)


def test_runs_are_drawn_within_their_task() -> None:
    low, high = resample([np.zeros(3), np.ones(4)], draws=50)
    assert low.shape == (50, 3)
    assert high.shape == (50, 4)
    assert not low.any()
    assert high.all()
    assert estimate([np.zeros(3), np.ones(4)], mean_of) == (0.5, 0.5, 0.5)  # pooled draws would spread


def test_single_runs_have_no_interval() -> None:
    assert estimate([np.array([3.0])], iqm_of) == (3.0, None, None)
    assert estimate_improvement([np.array([3.0])], [np.array([2.0])]) == (1.0, None, None)


def test_bands_are_the_intervals_of_each_point() -> None:
    values = RNG.normal(size=(6, 3))
    middle, low, high = band(values, mean)
    assert middle == pytest.approx(values.mean(0))
    picked = np.random.default_rng(0).integers(0, 6, (1000, 6))
    expected = percentiles(values[picked].mean(1))
    assert low == pytest.approx(expected[0])
    assert high == pytest.approx(expected[1])
    assert band(values, iqm)[0] == pytest.approx([float(iqm(column)) for column in values.T])
    assert [part.tolist() for part in band(values[:1], mean)] == [values[0].tolist()] * 3


def test_the_smallest_p_is_that_of_a_rank_test() -> None:
    for n, m in ((2, 2), (3, 3), (4, 3), (5, 5)):
        worst = stats.mannwhitneyu(np.arange(n), 100 + np.arange(m), method="exact").pvalue
        assert smallest_p(n, m) == pytest.approx(worst)


# -- curves ------------------------------------------------------------------------------------------------------------


def test_seeds_of_one_grid_are_combined_value_by_value() -> None:
    x = np.array([1.0, 2.0])
    curve = over_seeds([(x, np.array([0.0, 4.0])), (x, np.array([2.0, 8.0]))], "mean", 200)
    assert curve is not None
    assert (curve.x.tolist(), curve.value.tolist(), curve.runs.tolist()) == ([1, 2], [1, 6], [2, 2])


def test_a_run_counts_as_far_as_it_went_and_is_interpolated_between_its_rows() -> None:
    long = (np.array([0.0, 2.0, 4.0]), np.array([0.0, 2.0, 4.0]))
    short = (np.array([1.0, 2.0]), np.array([11.0, 12.0]))
    curve = over_seeds([long, short], "mean", 200)
    assert curve is not None
    assert curve.x.tolist() == [0, 1, 2, 4]
    assert curve.value.tolist() == [0, (1 + 11) / 2, (2 + 12) / 2, 4]
    assert curve.runs.tolist() == [1, 2, 2, 1]
    assert over_seeds([], "mean", 200) is None


def test_thinning_keeps_the_ends() -> None:
    assert thin(5, 10).tolist() == [0, 1, 2, 3, 4]
    kept = thin(1001, 200)
    assert (kept[0], kept[-1]) == (0, 1000)
    assert len(kept) == 200


def test_of_rows_that_share_an_x_the_last_counts() -> None:
    curve = Curve(np.array([0.0, 0.0, 5.0]), np.array([1.0, 2.0, 3.0]), np.zeros(3), np.array([1.0, 2.0, 3.0]))
    x, y = curve.over("env_steps")
    assert (x.tolist(), y.tolist()) == ([0, 5], [2, 3])


# -- comparison and effects --------------------------------------------------------------------------------------------


def made(finals: dict[tuple[str, str, str], list[float]]) -> list[Run]:
    """Runs by algo, reward and env."""
    runs = []
    for (algo, reward, env), values in finals.items():
        for seed, final in enumerate(values):
            curve = Curve(np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([0.0, final]))
            runs.append(
                Run(path=None, name=f"{algo}{reward}{env}{seed}", state="done", algo=algo, env=env, seed=seed,  # type: ignore[arg-type]
                    choices={"algo": algo, "reward": reward}, final=final, curves={"eval/return_mean": curve})
            )  # fmt: skip
    return runs


def test_effects_hold_the_other_choices_fixed() -> None:
    runs = made({("a", "x", "e"): [10.0, 12.0], ("b", "x", "e"): [1.0], ("a", "y", "e"): [21.0],
                 ("b", "y", "e"): [16.0], ("c", "y", "e"): [100.0]})  # fmt: skip
    grouping = group(Collection([], runs, [], []))
    assert grouping.keys == ["algo", "reward"]
    found = effects(runs, grouping)
    by_algo = {e.value: e for e in found["algo"]}
    # under x: a 11, b 1, mean 6; under y: a 21, b 16, c 100, mean 137 / 3
    assert by_algo["a"].effect.value == pytest.approx((5 + 21 - 137 / 3) / 2)
    assert by_algo["b"].effect.value == pytest.approx((-5 + 16 - 137 / 3) / 2)
    assert by_algo["c"].effect.value == pytest.approx(100 - 137 / 3)
    assert (by_algo["a"].settings, by_algo["c"].settings, by_algo["a"].runs) == (2, 1, 3)
    assert by_algo["c"].effect.low is None  # one run
    by_reward = {e.value: e.effect.value for e in found["reward"]}
    assert by_reward == {"x": pytest.approx((-5 - 7.5) / 2), "y": pytest.approx((5 + 7.5) / 2)}  # c has only y


def test_scores_share_a_scale_over_environments() -> None:
    runs = made({("a", "x", "e"): [0.0, 100.0], ("b", "x", "e"): [50.0, 50.0], ("a", "x", "f"): [3.0, 3.0],
                 ("b", "x", "f"): [1.0, 5.0]})  # fmt: skip
    comparison = compare(runs, group(Collection([], runs, [], [])))
    assert comparison is not None
    assert comparison.scale == "scaled"
    by_method = dict(zip(comparison.methods, comparison.aggregates["mean"], strict=True))
    assert by_method[0].value == by_method[1].value == 0.5  # (0 + 1) / 2 and 0.5; 0.5 and (0 + 1) / 2
    assert any("single" in text or "2 seeds" in text for text in comparison.cautions)


@pytest.mark.parametrize(("seeds", "said"), [(1, "single seed"), (3, "smallest possible p"), (4, "too narrow")])
def test_few_seeds_are_said(seeds: int, said: str) -> None:
    runs = made({("a", "x", "e"): [10.0 + i for i in range(seeds)], ("b", "x", "e"): [float(i) for i in range(seeds)]})
    comparison = compare(runs, group(Collection([], runs, [], [])))
    assert comparison is not None
    assert said in " ".join(comparison.cautions)


def test_five_seeds_apart_are_told_apart() -> None:
    runs = made({("a", "x", "e"): [10.0 + i for i in range(5)], ("b", "x", "e"): [float(i) for i in range(5)]})
    comparison = compare(runs, group(Collection([], runs, [], [])))
    assert comparison is not None
    assert [text for text in comparison.cautions if "seed" in text or "one half" in text] == []
    assert comparison.improvement[0][1] == (1.0, 1.0, 1.0)
