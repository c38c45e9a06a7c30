"""The paper's five experiments (rq1 to rq5) and `compare`: they run sweeps, evaluate the results and write reports."""
