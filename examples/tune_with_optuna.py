"""A search with Optuna: S_va judges, unpromising fits are pruned through the callback, S_te is read once at the end.

python examples/tune_with_optuna.py --trials 20

`dubnb sweep` does the same with a ledger that survives crashes; this example is for users of Optuna.
"""

import argparse

import optuna

import dubnb


def objective_of(data):
    """Optuna's objective: the best AUC on S_va."""

    def objective(trial):
        model = dubnb.make(
            "combine",
            rank=trial.suggest_categorical("rank", [10, 20, 50]),
            lam=trial.suggest_float("lam", 3e-4, 3e-3, log=True),
        )

        def callback(row):
            trial.report(row["va_auc"], row["epoch"])
            if trial.should_prune():
                raise optuna.TrialPruned

        return model.fit(data, callback=callback).history_["va_auc"].max()

    return objective


def main(trials=20, epochs_before_pruning=5):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    data = dubnb.load_dataset("simulated")
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_warmup_steps=epochs_before_pruning),
    )
    study.optimize(objective_of(data), n_trials=trials)
    best = dubnb.make("combine", **study.best_params).fit(data)
    print(f"best on S_va {study.best_value:.4f} with {study.best_params}")
    print(f"S_te: AUC {best.evaluate(data)['auc']:.4f}")
    return study


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=20)
    main(parser.parse_args().trials)
