"""Runs that cannot go on: numbers that are not finite, envs that fail, hang or die, and signals that are meant."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import register, registry
from helpers import SMALL, tiny
from safetensors.torch import load as load_tensors

import rlx
from rlx.callbacks.bus import Callback, CallbackBus
from rlx.checkpoint import CheckpointStore, read_folder
from rlx.cli import main
from rlx.envs import EnvConfig, make_vector_env
from rlx.envs.vector import AsyncEnvs, EnvFault, SyncEnvs, is_finite
from rlx.errors import RunFailed, UserError
from rlx.learner import AlgoConfig, Learner
from rlx.trainers.guard import Guard
from rlx.types import Spec


class Faulty(gym.Env):
    """Behaves until its step `at`, counted over episodes, and then does what `fault` says."""

    def __init__(self, fault: str = "none", at: int = 75, discrete: bool = False, mark: str = ""):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2) if discrete else gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.fault, self.at, self.mark, self.count = fault, at, mark, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if self.fault == "raise at reset":
            raise OSError("no such scene")
        if self.fault == "nan at reset" and self.count >= 60:
            return np.full(3, np.nan, np.float32), {}
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.count += 1
        obs, reward = self.np_random.uniform(-1, 1, 3).astype(np.float32), float(np.sum(action))
        if self.count >= self.at:
            obs, reward = self.misbehave(obs, reward)
        return obs, reward, False, False, {}

    def misbehave(self, obs: np.ndarray, reward: float) -> tuple[np.ndarray, float]:
        match self.fault:
            case "reward nan" | "reward inf" | "reward 1e30" | "reward 1e39":
                reward = float(self.fault.split()[1])
            case "obs nan" | "obs inf":
                obs[1] = float(self.fault.split()[1])
            case "raise":
                raise ArithmeticError("the simulation\nbroke")
            case "raise unsendable":
                raise Unsendable(1, 2)
            case "sys.exit":
                sys.exit(3)
            case "os._exit":
                os._exit(5)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                if self.mark:
                    Path(self.mark).touch()
                while True:
                    time.sleep(60)
            case "shape":
                obs = np.zeros(7, np.float32)
        return obs, reward


class Unsendable(Exception):
    """Cannot be built again from what pickle keeps of it."""

    def __init__(self, one: int, two: int):
        super().__init__("two things")


@pytest.fixture(autouse=True)
def _faulty() -> Iterator[None]:
    register("Faulty-v0", entry_point=Faulty, max_episode_steps=30)
    yield
    registry.pop("Faulty-v0")


# -- numbers that are not finite -------------------------------------------------------------------------------------

FAULTY = ("env.id=Faulty-v0", "~algo_env", "trainer.eval_interval=70", "trainer.checkpoint_interval=40")
REGIME = {
    "td3": "off_policy", "sac": "off_policy", "dqn": "off_policy", "discrete_sac": "off_policy", "ppo": "on_policy",
    "a2c": "on_policy", "rlpd": "offline_to_online", "td3_bc": "offline", "iql": "offline",
}  # fmt: skip
DISCRETE = ("dqn", "discrete_sac")
FROM_THE_ENV = [
    ("td3", "reward nan"), ("td3", "reward inf"), ("td3", "obs nan"), ("sac", "reward 1e39"), ("sac", "obs inf"),
    ("sac", "nan at reset"), ("dqn", "reward inf"), ("dqn", "obs nan"), ("discrete_sac", "reward nan"),
    ("ppo", "reward nan"), ("ppo", "obs nan"), ("a2c", "obs inf"), ("rlpd", "reward nan"), ("rlpd", "obs inf"),
]  # fmt: skip
BY_DIVERGENCE = {  # learning rates that no weights survive
    "td3": ("algo.actor_lr=1e10", "algo.critic_lr=1e10"),
    "sac": ("algo.actor_lr=1e10", "algo.critic_lr=1e10"),
    "dqn": ("algo.lr=1e10",),
    "discrete_sac": ("algo.actor_lr=1e10", "algo.critic_lr=1e10"),
    "ppo": ("algo.lr=1e10",),
    "a2c": ("algo.lr=1e10",),
    "rlpd": ("algo.actor_lr=1e10", "algo.critic_lr=1e10"),
    "td3_bc": ("algo.actor_lr=1e10", "algo.critic_lr=1e10"),
    "iql": ("algo.critic_lr=1e10", "algo.value_lr=1e10"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Transitions of an env that behaves."""
    file = tmp_path_factory.mktemp("data") / "data.npz"
    chance = np.random.default_rng(0)
    obs, ends = chance.uniform(-1, 1, (401, 3)).astype(np.float32), np.arange(400) % 20 == 19
    action = chance.uniform(-1, 1, (400, 1)).astype(np.float32)
    rows = {"obs": obs[:-1], "next_obs": obs[1:], "action": action, "reward": action[:, 0]}
    np.savez(file, **rows, terminated=np.zeros(400), truncated=ends)
    return file


def faulty(algo: str, fault: str, data: Path, *more: str) -> list[str]:
    """A run of an algorithm in an env with a fault."""
    kwargs = f"env.kwargs={{fault: {fault}, discrete: {algo in DISCRETE}}}"
    prior = ("dataset=npz", f"dataset.path={data}") if REGIME[algo].startswith("offline") else ()
    overrides = [o for o in tiny(REGIME[algo]) if not o.startswith(("dataset", "algo=", "env="))]
    budget = () if REGIME[algo] == "offline" else ("trainer.max_env_steps=170",)
    return [f"algo={algo}", *overrides, *FAULTY, kwargs, *prior, *budget, *more]


def check_whole(run: Path) -> None:
    """Every checkpoint is there and finite: the newest one, what it keeps of the replay, and the best one."""
    store = CheckpointStore(run / "checkpoints")
    folders = [*store.steps(), *([run / "checkpoints" / "best"] if (run / "checkpoints" / "best").exists() else [])]
    for folder in folders:
        for group in read_folder(folder).tensors.values():
            for name, tensor in group.items():
                assert tensor.isfinite().all(), f"{folder.name}: {name}"
    for segment, data in store._read_segments(store.latest()):
        assert all(tensor.isfinite().all() for tensor in load_tensors(data).values()), segment["name"]


def one_sentence(text: str, *parts: str) -> None:
    """On stderr there is one line, which holds these parts, and no traceback."""
    lines = [line for line in text.splitlines() if line.startswith("rlx: ")]
    assert "Traceback" not in text, text
    assert len(lines) == 1, text
    for part in parts:
        assert part in lines[0], lines[0]


@pytest.mark.parametrize(("algo", "fault"), FROM_THE_ENV)
def test_what_an_env_gives_is_checked_where_it_enters(
    algo: str, fault: str, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    assert main([*faulty(algo, fault, data), f"run_dir={run}"]) == 1
    checkpoint = CheckpointStore(run / "checkpoints").steps()[0].name
    step = "the reset of" if fault == "nan at reset" else "step 15 of"
    gave = "the observation" if "reward" not in fault else f"the reward {float(fault.split()[1])}"
    resume = f"`python -m rlx resume {run}` goes on from there"
    one_sentence(capfd.readouterr().err, "Faulty-v0, lane 0", step, f"gave {gave}", checkpoint, resume)
    check_whole(run)
    assert not (run / "summary.json").exists()
    assert main(["resume", str(run)]) == 1, "the same env fails again"
    check_whole(run)
    assert main(["resume", str(run), "env.kwargs.fault=none"]) == 0


@pytest.mark.parametrize("algo", BY_DIVERGENCE)
def test_weights_that_are_not_finite_are_never_saved(
    algo: str, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    """A healthy run goes on with a learning rate that is far too high, and then with a sane one again."""
    run = tmp_path / "run"
    longer = "trainer.max_updates=120" if REGIME[algo] == "offline" else "trainer.max_env_steps=300"
    assert main([*faulty(algo, "none", data), f"run_dir={run}"]) == 0
    good = CheckpointStore(run / "checkpoints").steps()[0].name
    sane = [f"{o.partition('=')[0]}=3e-4" for o in BY_DIVERGENCE[algo]]
    capfd.readouterr()
    assert main(["resume", str(run), longer, *BY_DIVERGENCE[algo]]) == 1
    text = capfd.readouterr().err
    one_sentence(text, "Training diverged: ", good, f"`python -m rlx resume {run} algo.", "a lower learning rate")
    assert CheckpointStore(run / "checkpoints").steps()[0].name == good
    check_whole(run)
    assert main(["resume", str(run), *BY_DIVERGENCE[algo]]) == 1, "nothing has changed"
    check_whole(run)
    assert main(["resume", str(run), *sane]) == 0
    check_whole(run)


def test_before_the_first_checkpoint_the_sentence_says_so(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture):
    """Rewards that are finite, whose squares are not."""
    rows = dict(np.load(data))
    np.savez(tmp_path / "large.npz", **{**rows, "reward": np.full(400, 1e30, np.float32)})
    run = tmp_path / "run"
    assert main([*faulty("td3_bc", "none", tmp_path / "large.npz"), f"run_dir={run}"]) == 1
    beginning = ("There is no checkpoint yet; `python -m rlx resume", "starts from the beginning")
    one_sentence(capfd.readouterr().err, "loss/critic is infinite since update 1", *beginning)
    assert not list(run.glob("checkpoints/*"))


def test_without_rows_of_metrics_the_guard_still_looks(data: Path, tmp_path: Path) -> None:
    overrides = faulty("td3", "none", data, "~callbacks.train_metrics", *BY_DIVERGENCE["td3"])
    with pytest.raises(RunFailed, match=r"Training diverged: .* since an update between 1 and \d+. The run ended"):
        rlx.train(*overrides, run_dir=tmp_path / "run")


def test_an_action_that_is_not_finite_does_not_reach_the_env(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlx.algos.td3 import TD3

    monkeypatch.setattr(TD3, "act", lambda self, obs, explore: torch.full((len(obs), 1), torch.nan))
    seen: list[Any] = []
    monkeypatch.setattr(Faulty, "misbehave", lambda self, obs, reward: (seen.append(reward), (obs, reward))[1])
    with pytest.raises(RunFailed, match="action is not finite, although its weights are"):
        rlx.train(*faulty("td3", "none", data, "env.kwargs.at=51"), run_dir=tmp_path / "run")
    assert seen == []


def test_an_evaluated_action_that_is_not_finite_does_not_reach_the_env(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlx.algos.td3_bc import TD3BC

    act = TD3BC.act
    rlx.train(*faulty("td3_bc", "none", data, "env.kwargs.at=1000"), run_dir=tmp_path / "run")
    monkeypatch.setattr(TD3BC, "act", lambda self, obs, explore: act(self, obs, explore) * torch.nan)
    with pytest.raises(RunFailed, match=r"The policy's actions are not finite: \[\[nan\]"):
        rlx.evaluate(tmp_path / "run", episodes=2)
    with pytest.raises(RunFailed, match=r"diverged: the policy's action is not finite.* The last checkpoint is"):
        rlx.resume(tmp_path / "run", "trainer.max_updates=90")


def test_an_update_that_fails_by_what_is_not_finite_is_told(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlx.algos.td3 import TD3

    def poison(self: TD3, batch: Any) -> dict:
        next(self.critic.parameters()).data[:] = torch.nan
        raise ValueError("a solver's own words")

    monkeypatch.setattr(TD3, "update", poison)
    with pytest.raises(RunFailed, match=r"model.critic.* is nan since an update between 1 and 1"):
        rlx.train(*faulty("td3", "none", data), run_dir=tmp_path / "run")


def test_a_reward_transform_that_overflows_is_told(data: Path, tmp_path: Path) -> None:
    overrides = faulty("td3", "reward 1e30", data, "reward=scale", "reward.scale=1e10")
    with pytest.raises(RunFailed, match=r"The reward transform made \[.*\] of the rewards"):
        rlx.train(*overrides, run_dir=tmp_path / "run")


def test_a_bug_is_still_a_traceback(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    from rlx.algos.td3 import TD3

    monkeypatch.setattr(TD3, "update", lambda self, batch: {}["no such metric"])
    assert main([*faulty("td3", "none", data), f"run_dir={tmp_path / 'run'}"]) == 1
    assert "Traceback" in capfd.readouterr().err


class Plain(Learner):
    """A learner of two weights."""

    def __init__(self) -> None:
        super().__init__(AlgoConfig(name="plain"), Spec("env", (1,), "float32", "box", (1,)))
        self.weight = torch.nn.Parameter(torch.ones(2))


@pytest.mark.parametrize(("value", "words"), [
    (torch.nan, "is nan"), (torch.inf, "is infinite"), (-1e9, "has grown to 1e+09"),
])  # fmt: skip
def test_the_guard_says_between_which_updates(value: float, words: str) -> None:
    learner = Plain()
    guard = Guard(learner)
    assert guard.problem(0) is None
    assert guard.problem(10) is None
    learner.weight.data[1] = value
    assert guard.problem(10) is None, "nothing was updated since"
    assert guard.problem(25) == f"model.weight {words} since an update between 11 and 25"


def test_the_guard_knows_the_update_of_the_first_bad_loss() -> None:
    """By the losses that every update reports: here the third one of the seven, and of the five since the last row."""
    inf, nan = float("inf"), float("nan")
    history = {"loss/critic": [2.0, 1.0, inf, nan, nan], "loss/actor": [nan, nan], "other": [nan] * 5}
    learner = Plain()
    guard = Guard(learner, lambda: history)
    assert guard.problem(2) is None
    guard.note({"loss/critic": torch.tensor(nan)})
    assert guard.problem(7) == "loss/critic is infinite since update 5"
    learner.weight.data[0] = nan
    assert guard.problem(7) == "loss/critic is infinite since update 5, and model.weight is nan"


def test_the_guard_raises_no_false_alarm() -> None:
    """Metrics that are nan, a loss that was infinite once, and finite numbers whose sum is not."""
    learner = Plain()
    learner.register_buffer("scale", torch.full((2,), 3e38))
    guard = Guard(learner, lambda: {"loss/critic": [float("inf"), 1.0]})
    guard.note({"loss/critic": torch.tensor(1.0), "train/return_mean": torch.tensor(torch.nan)})
    learner.weight.data[:] = torch.tensor([9e7, -9e7])
    assert guard.problem(2) is None


@pytest.mark.parametrize(("array", "finite"), [
    (np.array([1.0, np.nan]), False), (np.array([1e39]), False), (np.array([3e38, -3e38]), True),
    (np.array([1e30, 1e30], np.float32), True), (np.array([np.inf], np.float32), False),
    (np.array([7], np.uint8), True),
])  # fmt: skip
def test_finite_as_float32(array: np.ndarray, finite: bool) -> None:
    assert is_finite(array) == finite


# -- envs that fail --------------------------------------------------------------------------------------------------

FAILURES = {
    "raise": "raised ArithmeticError: the simulation broke (test_faults.py, line",
    "raise unsendable": "raised Unsendable: two things",
    "sys.exit": "called sys.exit(3)",
    "shape": "raised ValueError",
}
DEATHS = {
    "os._exit": "its process exited with code 5",
    "kill": "its process was killed by SIGKILL",
}


@pytest.mark.parametrize("fault", FAILURES)
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_env_that_raises_ends_the_run_in_a_sentence(
    fault: str, vectorization: str, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    assert main([*faulty("td3", fault, data), f"env.vectorization={vectorization}", f"run_dir={run}"]) == 1
    error = run / "error.txt"
    parts = ("Faulty-v0, lane 0: step 15 of", FAILURES[fault], "step_000000000040", f"its traceback is in {error}")
    one_sentence(capfd.readouterr().err, *parts)
    assert "Traceback" in error.read_text()
    assert FAILURES[fault].split()[1].rstrip(":") in error.read_text() or fault == "sys.exit"
    check_whole(run)
    assert main(["resume", str(run), "env.kwargs.fault=none"]) == 0
    assert not error.exists()


@pytest.mark.parametrize("fault", DEATHS)
def test_a_worker_that_dies_ends_the_run_in_a_sentence(
    fault: str, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    assert main([*faulty("td3", fault, data), "env.vectorization=async", f"run_dir={run}"]) == 1
    one_sentence(capfd.readouterr().err, "Faulty-v0, lane 0: step 15 of", DEATHS[fault], "step_000000000040")
    check_whole(run)


def test_a_worker_that_does_not_answer_ends_the_run_in_a_sentence(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    overrides = faulty("td3", "hang", data, "env.step_timeout=5")
    assert main([*overrides, f"run_dir={run}"]) == 1
    one_sentence(capfd.readouterr().err, "lane 0: step 15 of", "longer than env.step_timeout=5 seconds")
    check_whole(run)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_env_that_fails_before_its_first_step_is_told(
    vectorization: str, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    overrides = [*faulty("td3", "raise at reset", data), f"env.vectorization={vectorization}", f"run_dir={run}"]
    assert main(overrides) == 1
    one_sentence(
        capfd.readouterr().err, "Faulty-v0, lane 0: the reset of", "raised OSError: no such scene (test_faults"
    )
    assert not run.exists()


def test_an_env_that_cannot_be_closed_does_not_hide_what_ended_the_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def close(self: SyncEnvs) -> None:
        closed.append(self)
        raise OSError("gone")

    monkeypatch.setattr(SyncEnvs, "close", close)
    with pytest.raises(RunFailed, match="the simulation broke"):
        rlx.train(*faulty("td3", "raise", data), run_dir=tmp_path / "run")
    assert len(closed) == 2, "those of the training, and those of the evaluation"


def test_the_lane_that_failed_is_named() -> None:
    makers = [lambda lane=lane: Faulty("raise" if lane == 1 else "none", at=2) for lane in range(3)]
    for kind in (SyncEnvs, AsyncEnvs):
        envs = kind(makers, "Some-v0")
        envs.reset({0: 4, 1: 5, 2: 6})
        envs.step([np.zeros(1, np.float32)] * 3)
        with pytest.raises(EnvFault, match=r"^Some-v0, lane 1: step 2 of the episode with seed 5 raised Arithmetic"):
            envs.step([np.zeros(1, np.float32)] * 3)
        envs.close()


def test_a_worker_killed_between_steps_is_named() -> None:
    envs = AsyncEnvs([Faulty] * 2, "Some-v0")
    envs.reset({0: 4, 1: 5})
    envs._envs.processes[1].kill()
    envs._envs.processes[1].join()
    with pytest.raises(EnvFault, match=r"^Some-v0, lane 1: step 1 .* killed by SIGKILL"):
        envs.step([np.zeros(1, np.float32)] * 2)
    envs.close()
    assert not any(process.is_alive() for process in envs._envs.processes)


@pytest.mark.parametrize(("timeout", "vectorization", "words"), [
    (0.0, "async", "must be above 0"), (1.0, "sync", "env.vectorization=async"), (1.0, "native", "vectorization=async"),
])  # fmt: skip
def test_timeouts_that_cannot_be(timeout: float, vectorization: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_vector_env(EnvConfig(id="Faulty-v0", step_timeout=timeout, vectorization=vectorization))


def test_an_env_that_fails_in_an_evaluation_is_told(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    run = tmp_path / "run"
    assert main([*faulty("td3_bc", "none", data), f"run_dir={run}"]) == 0
    capfd.readouterr()
    with pytest.raises(RunFailed, match=r"lane 0: step 5 of the episode with seed .* raised ArithmeticError"):
        rlx.resume(run, "env.kwargs={fault: raise, at: 5}", "trainer.max_updates=80")
    check_whole(run)


# -- signals ---------------------------------------------------------------------------------------------------------

GUARD = 600  # seconds after which a test gives up: never what decides

HANGING = """
import sys
import test_faults
from gymnasium.envs.registration import register
from rlx.cli import main

register("Faulty-v0", entry_point=test_faults.Faulty, max_episode_steps=30)
sys.exit(main(sys.argv[1:]))
"""


def start(arguments: list[str], said: Path) -> subprocess.Popen:
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    with open(said, "w") as file:
        command = [sys.executable, "-c", HANGING, *arguments]
        return subprocess.Popen(
            command, stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": path}, start_new_session=True
        )


def wait_for(condition: Any, process: subprocess.Popen, said: Path) -> None:
    deadline = time.monotonic() + GUARD
    while not condition():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.02)


def hanging(vectorization: str, tmp_path: Path) -> tuple[subprocess.Popen, Path, Path]:
    """A run whose env never comes back from its 75th step, and is there now."""
    run, said, mark = tmp_path / "run", tmp_path / "said", tmp_path / "mark"
    kwargs = f"env.kwargs={{fault: hang, mark: {mark}}}"
    overrides = ["algo=td3", *SMALL, *FAULTY, kwargs, "trainer.max_env_steps=200", "trainer.learning_starts=50"]
    process = start([*overrides, f"env.vectorization={vectorization}", f"run_dir={run}"], said)
    wait_for(mark.exists, process, said)
    return process, run, said


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_a_run_whose_env_hangs(
    number: signal.Signals, code: int, vectorization: str, tmp_path: Path
) -> None:
    process, run, said = hanging(vectorization, tmp_path)
    try:
        process.send_signal(number)
        process.send_signal(number)  # `timeout` and launchers send two at once, and mean one
        wait_for(lambda: "a second one ends it at once" in said.read_text(), process, said)
        time.sleep(0.6)  # no less than what counts as one signal
        process.send_signal(number)
        assert process.wait(GUARD) == code, said.read_text()
    finally:
        process.kill()
    text = said.read_text()
    assert "Traceback" not in text
    assert f"rlx: A second signal, {number.name}, ended the run in the middle of a step. The last checkpoint is" in text
    check_whole(run)
    with pytest.raises(ProcessLookupError):  # no worker is left
        os.killpg(process.pid, 0)


def test_workers_end_with_a_trainer_that_is_killed(tmp_path: Path) -> None:
    process, _, said = hanging("async", tmp_path)
    process.kill()
    process.wait(GUARD)
    deadline = time.monotonic() + GUARD
    while alive(process.pid):
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.02)


def test_workers_end_without_help_from_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no prctl, or where a thread of the trainer started them."""
    code = (
        "import os, threading, gymnasium as gym\nfrom rlx.envs.vector import AsyncEnvs\n"
        "def work():\n"
        "    envs = AsyncEnvs([lambda: gym.make('Pendulum-v1')] * 2)\n"
        "    envs.reset({0: 1, 1: 2})\n"
        "    os.kill(os.getpid(), 9)\n"
        "thread = threading.Thread(target=work)\nthread.start()\nthread.join()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    assert process.wait(GUARD) == -signal.SIGKILL
    deadline = time.monotonic() + GUARD
    while alive(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(group: int) -> bool:
    """Is anybody left of a process group, who is not only waiting to be reaped?"""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    states = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        states += [fields[0]] if int(fields[2]) == group else []
    return any(state != "Z" for state in states)


# -- callbacks -------------------------------------------------------------------------------------------------------


class Leaving(Callback):
    """Calls sys.exit at the first update."""

    def on_update(self, trainer: Any, metrics: Any) -> None:
        sys.exit(4)


def test_a_logger_that_exits_is_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    logger = Leaving()
    logger.critical = False
    bus = CallbackBus({"leaving": logger})
    bus.emit("update", None, {})  # type: ignore[arg-type]
    assert bus.callbacks == {}
    assert "leaving failed and is switched off; the run goes on: sys.exit(4)" in caplog.text


def test_a_callback_that_exits_ends_the_run_in_a_sentence(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlx.callbacks.metrics.TrainMetrics.on_update", Leaving.on_update)
    with pytest.raises(RunFailed, match=r"called sys.exit\(4\) in on_update. The last checkpoint is"):
        rlx.train(*faulty("td3", "none", data), run_dir=tmp_path / "run")


@pytest.mark.parametrize("critical", [True, False])
def test_callbacks_hear_of_a_failure_and_cannot_hide_it(critical: bool) -> None:
    heard = []

    class Failing(Callback):
        def on_run_failed(self, trainer: Any, error: BaseException) -> None:
            heard.append(str(error))
            raise ValueError("and another one")

    first, second = Failing(), Failing()
    first.critical = second.critical = critical
    CallbackBus({"first": first, "second": second}).emit("run_failed", None, RunFailed("why"))  # type: ignore[arg-type]
    assert heard == ["why", "why"]


def test_a_sweep_goes_on_after_a_job_that_failed(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = [o for o in faulty("td3", "none", data) if not o.startswith("env.kwargs")]
    code = main(["-m", *overrides, "env.kwargs.at=75", "+env.kwargs.fault=reward nan,none", "hydra.sweep.dir=sweep",
                 "hydra/launcher=basic"])  # fmt: skip
    assert code == 1
    assert [p.parent.name for p in tmp_path.glob("sweep/*/summary.json")] == ["001_env.kwargs.fault=none"]
