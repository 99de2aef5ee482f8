"""Configs: their schemas, how they are composed, read from disk and checked, and what they may make."""

from rlx.config.checks import check, check_regime, check_seed, check_spec, learner_class, validate
from rlx.config.compose import compose_config, fit_numbers, for_hydra
from rlx.config.interpolations import as_text, as_written, escaped, references, resolved_values
from rlx.config.overrides import from_values, take_trust, with_config_dir
from rlx.config.saved import load_config, loggers, read_config, refuse_change, tell_changes
from rlx.config.schemas import GROUPS, Config, learners, register, schemas
from rlx.config.text import parse
from rlx.config.trust import (
    GYMNASIUM,
    PYTHON,
    WRAPPERS,
    env_modules,
    imported,
    instantiate,
    is_users_own,
    module_names,
    needed_trust,
    plain_wrapper,
    refuse_foreign_env,
    trusted,
)

__all__ = [
    "GROUPS", "GYMNASIUM", "PYTHON", "WRAPPERS", "Config", "as_text", "as_written", "check", "check_regime",
    "check_seed", "check_spec", "compose_config", "env_modules", "escaped", "fit_numbers", "for_hydra",
    "from_values", "imported", "instantiate", "is_users_own", "learner_class", "learners", "load_config", "loggers",
    "module_names", "needed_trust", "parse", "plain_wrapper", "read_config", "references", "refuse_change",
    "refuse_foreign_env", "register", "resolved_values", "schemas", "take_trust", "tell_changes", "trusted", "validate",
    "with_config_dir",
]  # fmt: skip
