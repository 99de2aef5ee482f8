"""Which nodes a run takes: native=auto, true or false.

`auto` takes the native ones where they have been built, and otherwise has them built in the background for the runs to
come. A run that goes on takes what it had, and a policy acts by what it was trained with: the two differ in the last
bits. RLX_NATIVE=true or false says what `auto` means, for a whole shell, and goes before what a run or a policy had.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from rlx.errors import UserError, shown
from rlx.nn.fused import differentiate_again
from rlx.nn.native import NATIVE, Native
from rlx.nn.native.build import (
    COMMAND,
    Unavailable,
    being_built,
    build_in_background,
    compiler,
    load,
    make_folder,
    note,
    noted,
    require,
    why_not_built,
)

log = logging.getLogger("rlx")

AUTO = "auto"
VARIABLE = "RLX_NATIVE"
WORDS = {"true": True, "false": False}


def check_native(wanted: Any) -> None:
    if wanted != AUTO and not isinstance(wanted, bool):
        given = "null" if wanted is None else shown(wanted)
        raise UserError(f"native must be auto, true or false (native={given}).")


def is_native() -> bool:
    """Do the native nodes compute in this process?"""
    return NATIVE.on is not None


def use_native(on: bool) -> None:
    """Switch them on, built now if they have to be, or off, for this process."""
    Native.on = _ready(require()) if on else None


def _ready(module: Any) -> Any:
    if module is not None:
        module.set_again(differentiate_again)
    return module


def set_native(wanted: bool | str, saved: bool | None = None) -> None:
    """Choose the nodes of a run; `saved` is what its checkpoint had."""
    if wanted == AUTO:
        wanted = _asked_by_variable()
    if wanted == AUTO:
        on = saved if saved is not None else _is_there()
        if on and load() is None:
            on = False  # the warning below says what follows
    else:
        on = wanted is True
    use_native(on)
    if saved is not None and on != saved:
        had, has = ("native nodes", "Python ones") if saved else ("Python nodes", "native ones")
        log.warning("The run had %s and now has %s: results may differ in the last bits.", had, has)


def acts_natively(saved: bool) -> bool:
    """Does a policy that was trained with native nodes (or not) act by them here?"""
    asked = _asked_by_variable()
    return (saved if asked == AUTO else asked is True) and load() is not None


def nodes_to_act_by(native: bool) -> Any:
    """For `Nodes`."""
    return _ready(load()) if native else None


def _asked_by_variable() -> bool | str:
    text = os.environ.get(VARIABLE, "") or AUTO
    if text != AUTO and text not in WORDS:
        raise UserError(f"{VARIABLE} must be auto, true or false ({VARIABLE}={text:.100}).")
    return WORDS.get(text, AUTO)


def _is_there() -> bool:
    """Are they built? If not, have them built, and say so once."""
    if load() is not None:
        return True
    if being_built():
        return False
    try:
        program = compiler()
        make_folder()
        why = why_not_built(program)
        if why is not None:
            why += f" To try again, type {COMMAND}."
    except Unavailable as error:
        why = f"Native nodes cannot be built: {error}."
    if why is not None:
        if noted("said") != why:
            log.info("%s Everything works without them, but not as fast (docs/speed.md).", why)
            note("said", why)
        return False
    log.info("Native nodes are being built in the background, for the runs after this one (docs/speed.md).")
    build_in_background()
    return False
