"""Put models from elsewhere on dubnb's leaderboard: a scikit-learn model, and ALS of the library implicit.

    pip install scikit-learn implicit
    python examples/arena_others.py --data bias-popularity --out runs/others

A factory gets the Partition, trains on S_c and S_t, and returns a function (users, items) -> scores. The arena judges
it on S_te by the same rules as dubnb's own systems. A factory with a parameter `seed` is fitted once for each seed.
"""

import argparse

import numpy as np

import dubnb
from dubnb.experiments.systems import Choice


def positives(data):
    """S_c's positives as a sparse 0/1 matrix (users, items)."""
    liked = data.S_c.copy()
    liked.eliminate_zeros()
    return liked


def by_ids(data, score):
    """A function of original ids, from a function of row numbers."""
    return lambda users, items: score(data.user_ids.rows(users, "user"), data.item_ids.rows(items, "item"))


def sklearn_model(data, seed=0):
    """Factors of S_c by a truncated SVD; a logistic regression on S_t weighs them against popularity."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    liked = positives(data)
    svd = TruncatedSVD(16, random_state=seed)
    user_factors, item_factors = svd.fit_transform(liked), svd.components_.T
    popularity = np.log1p(np.asarray(liked.sum(axis=0)).ravel())

    def features(users, items):
        return np.column_stack([np.einsum("jk,jk->j", user_factors[users], item_factors[items]), popularity[items]])

    S_t = data.triplets("S_t")
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(features(S_t.users, S_t.items), S_t.labels)
    return by_ids(data, lambda users, items: model.decision_function(features(users, items)))


def implicit_als(data, seed=0):
    """ALS of the library implicit on S_c's positives."""
    from implicit.als import AlternatingLeastSquares
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):  # implicit asks for it
        model = AlternatingLeastSquares(factors=16, regularization=1.0, random_state=seed, num_threads=1)
        model.fit(positives(data).astype(np.float32), show_progress=False)
    P, Q = model.user_factors, model.item_factors
    return by_ids(data, lambda users, items: np.einsum("jk,jk->j", P[users], Q[items]))


def main():
    """Run the arena with both models beside some of dubnb's systems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="bias-popularity", help="a dataset of dubnb")
    parser.add_argument("--systems", default="base,combine,ease,ials,popularity", help="systems of dubnb beside them")
    parser.add_argument("--budget", default="quick", help="smoke, quick or full")
    parser.add_argument("--out", required=True, help="where the page goes")
    args = parser.parse_args()
    others = {"scikit-learn SVD": sklearn_model, "implicit ALS": implicit_als}
    choice = Choice(tuple(args.systems.split(",")))
    print(dubnb.arena(dubnb.load_dataset(args.data), args.out, args.budget, choice, others=others))


if __name__ == "__main__":
    main()
