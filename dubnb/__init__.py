"""dubnb: debiased recommenders from a biased log and a sliver of randomized traffic."""
