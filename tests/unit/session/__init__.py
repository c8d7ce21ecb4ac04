"""Sessions over a fake engine and a planner with a language of a few words."""
