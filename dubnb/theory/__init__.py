"""Analyses of a log and a model: `bound`, `audit`, `plan` and `value`, one module each, and their statistics."""
