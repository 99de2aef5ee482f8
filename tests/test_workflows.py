"""The verbs as Python functions."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from helpers import resumed, same_run, tiny

import rlx
from rlx.build import build
from rlx.config import compose_config
from rlx.data.collect import add_noise
from rlx.data.dataset import scale_actions
from rlx.data.sources import npz, roll_out_random
from rlx.envs import make_env
from rlx.envs.actions import to_env_units, unscaled
from rlx.envs.vector import SyncEnvs
from rlx.errors import UserError
from rlx.rng import seeded
from rlx.run_folder import default_run_dir
from rlx.system import choose_device, set_threads
from rlx.types import Spec
from rlx.workflows import Result


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return rlx.train(*tiny("off_policy"), run_dir=tmp_path_factory.mktemp("w") / "run", seed=5)


def test_a_result_has_everything(result: Result) -> None:
    assert result.summary["seed"] == 5
    assert (result.run_dir / "summary.json").is_file()
    assert result.learner.updates == result.summary["updates"] == 160


def test_a_policy_speaks_the_units_of_the_env(result: Result) -> None:
    """[-1, 1] inside, [-2, 2] outside; one observation or many."""
    env = gym.make("Pendulum-v1")
    obs, _ = env.reset(seed=0)
    for policy in (result.policy, rlx.load(result.run_dir / "checkpoints" / "last")):
        action = policy.act(obs)
        assert env.action_space.contains(action)
        inside = result.learner.act(torch.from_numpy(obs)[None], explore=False)[0].numpy()
        np.testing.assert_allclose(action, 2.0 * inside, rtol=1e-6)
        assert policy.act(np.stack([obs, obs, obs])).shape == (3, 1)
        with pytest.raises(UserError, match="shape"):
            policy.act(np.zeros(4))


def test_a_policy_explores_when_asked(result: Result) -> None:
    policy = rlx.load(result.run_dir)
    draws = {float(policy.act(np.zeros(3), deterministic=False)[0]) for _ in range(5)}
    assert len(draws) == 5


def test_evaluation_agrees_with_a_plain_loop(result: Result) -> None:
    """Our own evaluation against twenty lines of Gymnasium, episode by episode."""
    found = rlx.evaluate(result.run_dir, episodes=3, seed=9)
    policy = rlx.load(result.run_dir)
    env = gym.make("Pendulum-v1", max_episode_steps=30)
    for k, seed in enumerate(np.random.SeedSequence(9).generate_state(3)):
        obs, _ = env.reset(seed=int(seed))
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
            total, over = total + float(reward), terminated or truncated
        assert found["returns"][k] == pytest.approx(total, rel=1e-4)


def test_evaluation_leaves_the_random_state_alone(result: Result) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    rlx.evaluate(result.run_dir, episodes=1)
    learner_made = torch.get_rng_state()  # building a network draws from it
    torch.manual_seed(0)
    rlx.load(result.run_dir)
    assert torch.equal(torch.get_rng_state(), learner_made)
    assert not torch.equal(before, learner_made)


def test_two_runs_at_once_have_two_folders() -> None:
    cfg = compose_config(["env=point_goal"])
    folders = {default_run_dir(cfg) for _ in range(20)}
    assert len(folders) == 20
    assert all("/" not in folder.name and folder.parent == Path("multirun_outputs/runs") for folder in folders)


def test_a_run_in_another_thread_needs_no_signals(tmp_path: Path, result: Result) -> None:
    found: list[Result] = []
    work = threading.Thread(target=lambda: found.append(rlx.train(*tiny("off_policy"), run_dir=tmp_path / "r", seed=5)))
    work.start()
    work.join()
    same_run(tmp_path / "r", result.run_dir)


def test_a_moved_run_folder_can_be_resumed(tmp_path: Path) -> None:
    rlx.train(*tiny("off_policy"), run_dir=tmp_path / "a" / "run")
    os.rename(tmp_path / "a", tmp_path / "b")
    assert resumed(tmp_path / "b" / "run", "trainer.max_env_steps=140").summary["env_steps"] == 140


def test_one_thread_unless_asked_otherwise() -> None:
    assert set_threads(compose_config(["env=hopper"])) == "1 thread, the default"  # two layers of 256
    assert set_threads(compose_config(["threads=2"])) == "2 threads, as asked"
    assert torch.get_num_threads() == 2
    assert set_threads(compose_config([]), saved=1) == "1 thread, as the run had it"
    assert torch.get_num_threads() == 1


def test_devices_that_are_not_there_are_refused() -> None:
    assert choose_device("cpu").type == "cpu"
    for name in ("nonsense", "cuda:77"):
        with pytest.raises(UserError, match="device=cpu"):
            choose_device(name)


def test_a_directory_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        rlx.resume(tmp_path)


@pytest.mark.parametrize(("device", "kept"), [("cpu", []), ("cuda:1", [torch.device("cuda:1")])])
def test_the_random_state_of_the_learners_device_is_kept(device: str, kept: list, monkeypatch) -> None:
    """torch.manual_seed seeds every device, so what is forked has to hold the learner's."""
    forked = []

    @contextmanager
    def fork_rng(devices):
        forked.extend(devices)
        yield

    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    with seeded(3, torch.device(device)):
        assert torch.initial_seed() == 3
    assert forked == kept


def test_only_a_replay_that_asks_for_it_gets_an_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr("rlx.build.make_env", lambda cfg, trust: made.append(cfg) or make_env(cfg, trust))
    build(compose_config(tiny("off_policy")), tmp_path).close()
    assert len(made) == 1  # for the Spec
    build(compose_config(tiny("off_policy", "env=point_goal", "replay=hindsight", "~algo_env")), tmp_path).close()
    assert len(made) == 3


def test_a_failing_env_does_not_cost_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def close(self) -> None:
        raise OSError("gone")

    monkeypatch.setattr(SyncEnvs, "close", close)
    with pytest.raises(OSError, match="gone"):
        rlx.train(*tiny("off_policy"), run_dir=tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").exists()


def test_box_actions_are_scaled_by_dimension() -> None:
    """As those of a dataset are: bounded dimensions to their bounds, the others not at all."""
    low, high = [-2.0, -np.inf, 0.0], [2.0, np.inf, np.inf]
    spec = Spec("X-v0", (1,), "float32", "box", (3,), tuple(low), tuple(high))
    action = np.array([[0.5, 5.0, -3.0], [-7.0, 0.1, 0.2]], np.float32)
    expected = np.array([[1.0, 5.0, -3.0], [-2.0, 0.1, 0.2]], np.float32)
    space = gym.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
    assert np.array_equal(unscaled(action, spec), expected)
    assert np.array_equal(to_env_units(space)(action), expected)
    assert np.array_equal(scale_actions(expected, spec)[0], np.array([[0.5, 5, -3], [-1, 0.1, 0.2]], np.float32))
    noisy = add_noise(action * 100, spec, 0.1, np.random.default_rng(0))
    assert np.abs(noisy[:, 0]).max() == 1.0
    assert np.abs(noisy[0, 1]) > 400


def test_a_mistake_while_building_leaves_no_processes(tmp_path: Path) -> None:
    """An unfit env with async workers is refused before any of them starts."""
    import multiprocessing

    with pytest.raises(UserError, match="discrete"):
        rlx.train(
            *tiny("off_policy", "env=cartpole", "env.vectorization=async", "env.num_envs=2"), run_dir=tmp_path / "r"
        )
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("memory", ["ram", "mmap"])
def test_without_an_env_the_dataset_is_read_once(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = roll_out_random("Pendulum-v1", 300, seed=1)
    data.env_id = None
    file = data.save(tmp_path / "data.npz")
    read: list[str] = []
    original = npz.read_npz
    monkeypatch.setattr(npz, "read_npz", lambda path, mmap=False: read.append(path) or original(path, mmap))
    small = ("algo.hidden=[8,8]", "algo.batch_size=16", "trainer.max_updates=5", "threads=1", "logger=none")
    given = ("env=none", "dataset=npz", f"dataset.path={file}", f"dataset.memory={memory}")
    found = rlx.train("algo=td3_bc", *given, *small, run_dir=tmp_path / "run")
    assert read == [str(file)]
    spec = found.learner.spec
    assert (spec.obs_shape, spec.action_shape) == ((3,), (1,))
    assert (spec.action_low, spec.action_high) == ((float(data.action.min()),), (float(data.action.max()),))
    for use in (rlx.evaluate, lambda run: rlx.collect(run, "test/none-v0")):
        with pytest.raises(UserError, match="env=none"):
            use(found.run_dir)


@pytest.mark.parametrize("wrong", ["callbacks.early_stopping.mode=best", "reward.success_bonus=1"])
def test_envs_are_closed_where_a_later_part_of_a_run_cannot_be_made(wrong: str, tmp_path: Path) -> None:
    """Those to learn in come first, then one to ask for rewards, those to evaluate in, and the callbacks."""
    made, closed = [], []

    class Watched(gym.Wrapper):
        def close(self) -> None:
            closed.append(self)
            super().close()

    def make() -> gym.Env:
        made.append(Watched(gym.make("rlx/PointGoal-v0")))
        return made[-1]

    with pytest.raises(UserError, match=wrong.partition("=")[0]):
        rlx.train("algo=her", "callbacks=[default,early_stopping]", wrong, env=make, run_dir=tmp_path / "run")
    assert len(made) >= 3
    assert made == sorted(closed, key=made.index)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("trainer.max_env_steps=20", "trainer.learning_starts=20"), "trainer.learning_starts=20 env steps"),
        (("trainer.max_env_steps=20", "trainer.warmup_steps=30", "trainer.learning_starts=5"), "warmup_steps=30"),
        (("trainer.max_env_steps=21", "trainer.learning_starts=20"), None),
        (("trainer.max_env_steps=20", "trainer.learning_starts=20", "algo=rlpd", "trainer.pretrain_updates=1"), None),
    ],
)
def test_a_budget_that_ends_before_the_first_update_is_told(
    overrides: tuple[str, ...], told: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    regime = "offline_to_online" if "algo=rlpd" in overrides else "off_policy"
    result = rlx.train(*tiny(regime, *overrides), run_dir=tmp_path / "run")
    warned = [record.getMessage() for record in caplog.records if "No update will be made" in record.getMessage()]
    assert bool(warned) == (told is not None) == (result.summary["updates"] == 0)
    assert told is None or told in warned[0]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("callbacks=early_stopping",), True),
        (("callbacks=[default,early_stopping]",), False),
        (("~callbacks.checkpoint", "~callbacks.evaluate"), False),
    ],
)
def test_callbacks_without_the_default_ones_are_told(
    overrides: tuple[str, ...], told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short = ("env=pendulum", "algo.hidden=[8]", "trainer.max_env_steps=2", "trainer.eval_episodes=1", "logger=none")
    rlx.train("algo=sac", *short, *overrides, run_dir=tmp_path / "run", progress=False)
    warned = [record.getMessage() for record in caplog.records if "callbacks=[default," in record.getMessage()]
    assert bool(warned) == told
