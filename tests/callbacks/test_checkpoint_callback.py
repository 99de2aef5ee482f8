from __future__ import annotations

from rlx.callbacks.checkpoint import Checkpoint, CheckpointConfig


def test_saves_at_intervals_and_at_the_end(make_trainer):
    trainer = make_trainer({"checkpoint": Checkpoint(CheckpointConfig())}).start()
    for _ in range(4):
        trainer.advance(6)
    trainer.end("interrupted")
    assert trainer.saves == [("step", 12), ("step", 24)]

    trainer = make_trainer({"checkpoint": Checkpoint(CheckpointConfig())}).start()
    for _ in range(3):
        trainer.advance(6)
    trainer.end("interrupted")
    assert trainer.saves == [("step", 12), ("step", 18)]


def test_a_run_that_ends_before_its_first_step_has_a_checkpoint_too(make_trainer):
    trainer = make_trainer({"checkpoint": Checkpoint(CheckpointConfig())}).start()
    trainer.end("terminated")
    assert trainer.saves == [("step", 0)]


def test_the_checkpoint_knows_of_itself(make_trainer):
    first = make_trainer({"checkpoint": Checkpoint(CheckpointConfig())}).start()
    states = []
    first.save = lambda name: states.append(first.bus.state())
    first.advance(10)
    second = make_trainer({"checkpoint": Checkpoint(CheckpointConfig())}, resumed=True)
    second.bus.load_state(states[0])
    second.state.steps = 10
    second.start().end("max_updates")
    assert second.saves == []
