"""The paper's five experiments: short descriptions over the sweep and the evaluator, each with a report."""
