from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from helpers import final, resumed, rows, same_tensors, snapshots, tiny

import rlx
from rlx.callbacks import video as module
from rlx.callbacks.bus import Callback
from rlx.callbacks.video import Video, VideoConfig
from rlx.envs.memory import Recall
from rlx.errors import UserError
from rlx.trainers.trainer import Trainer
from rlx.video import Recording

WITH = ("callbacks=[default,video]", "callbacks.video.every=2", "trainer.eval_interval=40")
WITHOUT = ("trainer.eval_interval=40",)


class Screening(Callback):
    """Keeps what loggers are told of."""

    order = 70

    def __init__(self) -> None:
        self.seen: list[tuple[Path, float]] = []

    def on_video(self, trainer: Trainer, path: Path, fps: float) -> None:
        assert path.stat().st_size > 1000
        self.seen.append((path, fps))


def test_a_run_with_videos_is_the_run_without_and_resumes_exactly(tmp_path: Path) -> None:
    rlx.train(*tiny("off_policy", *WITHOUT), run_dir=tmp_path / "without", quiet=True)
    with snapshots(("checkpoint", 3), into=tmp_path / "killed") as at:
        rlx.train(*tiny("off_policy", *WITH), run_dir=tmp_path / "with", quiet=True)
    killed = at["checkpoint", 3]
    resumed(killed)
    for folder in (tmp_path / "with", killed):
        same_tensors(final(folder), final(tmp_path / "without"))
        assert rows(folder) == rows(tmp_path / "without")
        made = sorted(path.name for path in (folder / "videos").iterdir())
        assert made == ["step_000000000080.mp4", "step_000000000130.mp4"]  # the second evaluation, and the end


def test_loggers_are_told(tmp_path: Path, make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    filmed: list[Path] = []

    def film(learner: Any, cfg: Any, path: Path, *args: Any) -> Any:
        path.write_bytes(bytes(2000))
        filmed.append(path)
        return Recording(path, 25.0, None)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "record", film)
    screening, video = Screening(), Video(VideoConfig(every=2))
    trainer = make_trainer({"video": video, "screening": screening}, run_dir=tmp_path)
    trainer.env_config, trainer.cfg = object(), type("Cfg", (), {"seed": 0, "trust": []})
    for steps in (10, 20, 30, 40):
        trainer.state.steps = steps
        trainer.bus.emit("evaluated", trainer, {})
    assert [path.name for path, _ in screening.seen] == ["step_000000000020.mp4", "step_000000000040.mp4"]
    assert {fps for _, fps in screening.seen} == {25.0}
    trainer.end("max_env_steps")
    assert len(filmed) == 2  # the end is filmed already
    again = Video(VideoConfig(every=2))
    again.load_state(video.state())
    assert (again.evaluations, again.last) == (4, 40)


class Unseen(Recall):
    """Is not made for being looked at."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()


gym.register("test/Unseen-v0", Unseen)


def test_what_cannot_be_filmed_is_told_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be rendered"):
        rlx.train(*tiny("on_policy", *WITH, "env.id=test/Unseen-v0"), run_dir=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "videos").symlink_to(tmp_path)
    with pytest.raises(UserError, match="is a link"):
        rlx.train(*tiny("off_policy", *WITH), run_dir=tmp_path / "linked", quiet=True)
