"""Where the jobs of a sweep run. A launcher is a `Pool` with a config dataclass; hydra/launcher=NAME chooses it."""
