//! Planners: the default search, heuristics, bounds and placement.
