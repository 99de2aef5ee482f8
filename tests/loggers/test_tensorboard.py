from __future__ import annotations

import io
import logging
import math

import pytest
from omegaconf import OmegaConf
from PIL import Image, ImageSequence

from rlx.loggers.tensorboard import Tensorboard, TensorboardConfig


@pytest.fixture(autouse=True)
def event_files_sort_by_age(monkeypatch):
    """Files of one process and second are told apart by a counter, and 10 sorts before 9."""
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    monkeypatch.setattr(writer, "_global_uid", writer.AtomicCounter(1000))


@pytest.fixture
def scalars(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def read(name, folder="tensorboard"):
        events = accumulator.EventAccumulator(str(tmp_path / folder), size_guidance={"scalars": 0})
        events.Reload()
        return [(event.step, event.value) for event in events.Scalars(name)] if name in events.Tags()["scalars"] else []

    return read


@pytest.fixture
def write(log_row):
    def write(run, steps):
        logger = Tensorboard(TensorboardConfig())
        logger.on_run_start(run)
        for step in steps:
            log_row(logger, run, {"eval/return_mean": step / 2}, env_steps=step)
        return logger

    return write


def test_metrics_are_scalars_over_env_steps(make_run, scalars, write, log_row):
    run = make_run()
    logger = write(run, [10, 20])
    log_row(logger, run, {"eval/return_mean": math.nan}, env_steps=20, updates=15)
    logger.on_run_end(run)
    logger.on_checkpoint(run, run.run_dir)  # the last checkpoint comes after the end
    assert scalars("eval/return_mean") == [(10, 5.0), (20, 10.0)]
    assert scalars("env_steps") == [(10, 10.0), (20, 20.0)], "once a step, also where two rows share it"
    assert [step for step, _ in scalars("wall_time")] == [10, 20]


def test_a_run_without_env_steps_is_drawn_over_updates(make_run, scalars, log_row):
    run = make_run(regime="offline")
    logger = Tensorboard(TensorboardConfig())
    logger.on_run_start(run)
    log_row(logger, run, {"loss/critic": 0.5}, updates=30)
    logger.on_run_end(run)
    assert scalars("loss/critic") == [(30, 0.5)]
    assert scalars("updates") == [(30, 30.0)]


def test_pretraining_is_drawn_over_updates_under_its_name_and_the_rest_over_env_steps(make_run, scalars, log_row):
    run = make_run(regime="offline_to_online")
    logger = Tensorboard(TensorboardConfig())
    logger.on_run_start(run)
    for updates in (50, 100):
        log_row(logger, run, {"eval/return_mean": 1.0}, updates=updates)
    run.state.phase = "online"
    log_row(logger, run, {"eval/return_mean": 2.0}, env_steps=10, updates=110, steps=110)
    logger.on_run_end(run)
    assert scalars("eval/return_mean") == [(10, 2.0)], "not over the sum of both"
    assert scalars("pretrain/eval/return_mean", "tensorboard/pretrain") == [(50, 1.0), (100, 1.0)]

    again = make_run(steps=110, resumed=True, regime="offline_to_online")
    again.state.phase, again.state.env_steps, again.state.updates = "online", 10, 110
    logger = Tensorboard(TensorboardConfig())
    logger.on_run_start(again)
    log_row(logger, again, {"eval/return_mean": 3.0}, env_steps=20, updates=120, steps=120)
    logger.on_run_end(again)
    assert scalars("eval/return_mean") == [(10, 2.0), (20, 3.0)]
    hidden = "pretraining has more updates than the run has env steps, and stays all the same"
    assert scalars("pretrain/eval/return_mean", "tensorboard/pretrain") == [(50, 1.0), (100, 1.0)], hidden


def test_a_run_that_begins_again_hides_everything(make_run, scalars, write):
    run = make_run()
    write(run, [0, 10]).on_checkpoint(run, run.run_dir)
    again = make_run(resumed=True)
    write(again, [5]).on_run_end(again)
    assert scalars("eval/return_mean") == [(5, 2.5)]


def test_a_resume_hides_what_came_after_its_checkpoint(make_run, scalars, write):
    run = make_run()
    write(run, [10, 20, 30, 40]).on_checkpoint(run, run.run_dir)
    again = make_run(steps=20, resumed=True)
    write(again, [30]).on_run_end(again)
    assert scalars("eval/return_mean") == [(10, 5.0), (20, 10.0), (30, 15.0)]


def test_the_hparams_tab_compares_the_runs_of_a_sweep(make_run, tmp_path, write, monkeypatch):
    """As TensorBoard's own backend reads it: a session per run, hyperparameters from all of them, and their metrics."""
    backend_context = pytest.importorskip("tensorboard.plugins.hparams.backend_context")
    from tensorboard import context
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, get_experiment, list_session_groups

    monkeypatch.setenv("A_SEED", "4711")
    sweep = tmp_path / "sweep"
    for i, algo in enumerate(("sac", "td3")):
        cfg = {"seed": "${oc.env:A_SEED}", "choices": {"algo": algo, "reward": "clip_1"}}
        run = make_run(cfg=cfg, folder=sweep / f"00{i}_algo={algo}")
        typed = [f"algo={algo}", "algo.lr=1e-3", "logger=wandb", "~callbacks.progress", "key=${oc.env:HOME}"]
        (run.run_dir / "overrides.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(typed)))
        write(run, [10, 20 + i]).on_run_end(run)

    runs = plugin_event_multiplexer.EventMultiplexer()
    runs.AddRunsFromDirectory(str(sweep))
    runs.Reload()
    assert sorted(runs.Runs()) == ["000_algo=sac/tensorboard", "001_algo=td3/tensorboard"], "no runs besides"
    provider = data_provider.MultiplexerDataProvider(runs, str(sweep))
    backend = backend_context.Context(base_plugin.TBContext(data_provider=provider, logdir=str(sweep)))
    asked = context.RequestContext()
    experiment = get_experiment.Handler(asked, backend, "", api_pb2.GetExperimentRequest(include_metrics=True)).run()
    assert {info.name for info in experiment.hparam_infos} == {"seed", "algo", "reward", "algo.lr", "key"}
    request = api_pb2.ListSessionGroupsRequest(start_index=0, slice_size=9, allowed_statuses=[0, 1, 2, 3])
    request.col_params.add(metric=api_pb2.MetricName(tag="eval/return_mean"))
    groups = list_session_groups.Handler(asked, backend, "", request).run().session_groups
    table = {
        group.hparams["algo"].string_value: (
            group.hparams["seed"].string_value,
            group.hparams["algo.lr"].number_value,
            group.hparams["key"].string_value,
            [value.value for value in group.metric_values if value.name.tag == "eval/return_mean"],
        )
        for group in groups
    }
    same = ("${oc.env:A_SEED}", 1e-3, "${oc.env:HOME}")
    assert table == {"sac": (*same, [10.0]), "td3": (*same, [10.5])}


def test_a_video_is_an_animated_image(make_run, tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    video = tmp_path / "episode.mp4"
    writer = ffmpeg.write_frames(str(video), (480, 320), fps=20, ffmpeg_log_level="error")
    writer.send(None)
    for color in ("red", "red", "blue", "blue"):
        writer.send(Image.new("RGB", (480, 320), color).tobytes())
    writer.close()
    run = make_run(steps=7)
    logger = Tensorboard(TensorboardConfig())
    logger.on_run_start(run)
    logger.on_video(run, video, 20.0)
    logger.on_run_end(run)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (event,) = events.Images("eval/video")
    shown = Image.open(io.BytesIO(event.encoded_image_string))
    assert (event.step, shown.format, shown.size, shown.n_frames) == (7, "GIF", (240, 160), 2), "every second frame"
    assert shown.info["duration"] == 100
    colors = [frame.convert("RGB").getpixel((120, 80)) for frame in ImageSequence.Iterator(shown)]
    assert [color.index(max(color)) for color in colors] == [0, 2], "red, then blue"


def test_a_video_that_cannot_be_read_is_told_and_nothing_else(make_run, tmp_path, caplog):
    (tmp_path / "episode.mp4").write_bytes(b"no video")
    run = make_run()
    logger = Tensorboard(TensorboardConfig())
    logger.on_run_start(run)
    with caplog.at_level(logging.WARNING, "rlx"):
        logger.on_video(run, tmp_path / "episode.mp4", 20.0)
    logger.on_run_end(run)
    assert "is not shown in TensorBoard" in caplog.text
