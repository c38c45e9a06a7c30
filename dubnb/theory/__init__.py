"""The theory made visible: bounds to check, randomness to audit, traffic to plan."""
