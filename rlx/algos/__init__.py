"""The algorithms: one file each with its config dataclass, its losses as pure functions, and its learner."""
