"""Which customers will leave? Boosted trees on a table with gaps and categories, from Parquet files to predictions.

    python examples/tabular.py                          LightGBM: pip install "paceline[lightgbm]"
    python examples/tabular.py --model xgboost          XGBoost:  pip install "paceline[xgboost]"
    python examples/tabular.py --storage-path results   run it again after a crash: it continues

The preprocessors learn from the rows that are trained on, and from no others. They go with the checkpoint, so whoever
has that can predict from raw rows. The trees have to rank customers better than a linear model of the same features;
below the stated quality this exits with 1.
"""

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import paceline.data
from paceline.data.preprocessors import (
    Chain,
    OneHotEncoder,
    OrdinalEncoder,
    Preprocessor,
    SimpleImputer,
    StandardScaler,
)
from paceline.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig

STATED_AUC = 0.85
STATED_GAIN = 0.05
"""How much better than the linear model, in AUC: 0.5 is chance, 1 is every leaver before every stayer."""

NUMBERS = ["age", "income", "months", "calls", "spent"]
LABEL = "left"

PARAMS = {
    "lightgbm": {
        "objective": "binary",
        "metric": "auc",
        "learning_rate": 0.15,
        "num_leaves": 15,
        "verbosity": -1,
        "deterministic": True,
        "seed": 0,
    },
    "xgboost": {"objective": "binary:logistic", "eval_metric": "auc", "eta": 0.15, "max_depth": 4, "seed": 0},
}


def customers_at(directory: Path, num_rows: int, num_files: int = 4) -> Path:
    """Parquet files of customers. Your own files go here."""
    if directory.exists():
        return directory
    part = directory.with_suffix(".part")  # so that a crash leaves no half of a table that looks like a whole
    part.mkdir(parents=True, exist_ok=True)
    table = customers(num_rows)
    for number, rows in enumerate(np.array_split(np.arange(num_rows), num_files)):
        pq.write_table(table.take(rows), part / f"part-{number:03d}.parquet")
    return part.rename(directory)


def customers(num_rows: int, seed: int = 0) -> pa.Table:
    """Customers that leave for reasons which depend on each other, as in life; and not everything is known of all."""
    random = np.random.default_rng(seed)
    age = random.normal(45, 14, num_rows).clip(18, 90).round()
    income = random.lognormal(10.3, 0.5, num_rows).round()
    months = random.integers(1, 120, num_rows).astype(float)
    calls = random.poisson(2, num_rows).astype(float)
    spent = random.gamma(2, 40, num_rows).round(2)
    plan = random.choice(["basic", "plus", "pro"], num_rows, p=[0.5, 0.35, 0.15])
    region = random.choice(["north", "south", "east", "west", "islands"], num_rows)

    troubled = (calls > 3) & (months < 36)  # many calls are a bad sign early on, and a good one later
    loyal = (calls > 3) & (months >= 36)
    stretched = spent / income > 0.0025
    middle_aged = abs(age - 45) < 12
    pull = 3.5 * troubled - 2.0 * loyal + 2.2 * stretched * (plan != "pro") - 1.8 * middle_aged
    pull = pull + 1.5 * ((region == "islands") & (plan == "basic")) + 0.8 * (months < 12) - 0.5
    left = random.random(num_rows) < 1 / (1 + np.exp(-1.5 * pull))

    def with_gaps(values: np.ndarray, share: float) -> pa.Array:
        return pa.array(values, mask=random.random(num_rows) < share)

    return pa.table(
        {
            "age": with_gaps(age, 0.05),
            "income": with_gaps(income, 0.1),
            "months": months,
            "calls": calls,
            "spent": with_gaps(spent, 0.03),
            "plan": plan,
            "region": with_gaps(region, 0.1),
            LABEL: left.astype(np.int64),
        }
    )


def new_preprocessor() -> Preprocessor:
    """From raw columns to numbers without gaps. What has an order keeps it; what has none becomes a column for each."""
    return Chain(
        SimpleImputer(NUMBERS, strategy="mean"),
        SimpleImputer(["region"], strategy="constant", fill_value="not known"),
        # Trees do not need it, the linear model that they are compared with does.
        StandardScaler(NUMBERS),
        OrdinalEncoder(["plan"]),
        OneHotEncoder(["region"]),
    )


def new_trainer(model: str, **options: Any) -> Any:
    """Either takes the same arguments, but for the parameters, which are the library's own."""
    if model == "xgboost":
        from paceline.train.xgboost import XGBoostTrainer

        return XGBoostTrainer(params=PARAMS[model], verbose_eval=False, **options)
    from paceline.train.lightgbm import LightGBMTrainer

    return LightGBMTrainer(params=PARAMS[model], **options)


def predictor_class(model: str) -> type:
    if model == "xgboost":
        from paceline.train.xgboost import XGBoostPredictor

        return XGBoostPredictor
    from paceline.train.lightgbm import LightGBMPredictor

    return LightGBMPredictor


def predicted(model: str, checkpoint: Checkpoint, raw: paceline.data.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """What came true, and how likely the model found it, for raw rows: nothing but the checkpoint is needed."""
    preprocessor = Preprocessor.from_dict(checkpoint.get_metadata()["preprocessor"])
    rows = preprocessor.transform(raw).map_batches(
        predictor_class(model),
        fn_constructor_kwargs={"checkpoint": checkpoint, "keep_columns": [LABEL]},
        concurrency=1,
    )
    table = rows.to_pandas()
    return table[LABEL].to_numpy(), table["predictions"].to_numpy()


def linear_baseline(train_rows: paceline.data.Dataset, test_rows: paceline.data.Dataset) -> np.ndarray:
    """What a linear model of the same features says of the test rows."""

    def features(rows: paceline.data.Dataset) -> tuple[np.ndarray, np.ndarray]:
        batch = rows.take_batch(rows.count(), batch_format="numpy")
        columns = [np.atleast_2d(batch[name].T).T for name in batch if name != LABEL]
        return np.concatenate([*columns, np.ones((len(batch[LABEL]), 1))], axis=1), batch[LABEL]

    x, y = features(train_rows)
    weights, *_ = np.linalg.lstsq(x, y, rcond=None)
    return features(test_rows)[0] @ weights


def auc(truth: np.ndarray, scores: np.ndarray) -> float:
    """How often someone who left is ranked above someone who stayed; equal scores count half."""
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (sizes.cumsum() - (sizes - 1) / 2)[group]
    num_left = truth.sum()
    above = ranks[truth == 1].sum() - num_left * (num_left + 1) / 2
    return float(above / (num_left * (len(truth) - num_left)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(PARAMS), default="lightgbm")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=40_000, help="customers, of which a fifth are tested on")
    parser.add_argument("--rounds", type=int, default=100, help="trees to grow, one after the other")
    parser.add_argument("--storage-path", default="results", help="where files and runs are kept")
    parser.add_argument("--name", help="of the run; one that exists is continued")
    args = parser.parse_args()
    if importlib.util.find_spec(args.model) is None:
        sys.exit(f"--model {args.model} needs {args.model}\n\nhint: pip install 'paceline[{args.model}]'")

    storage = Path(args.storage_path).absolute()
    files = customers_at(storage / f"customers-{args.rows}", args.rows)
    raw = paceline.data.read_parquet(str(files))
    raw_rest, raw_test = raw.train_test_split(0.2, shuffle=True, seed=0, stratify=LABEL)
    raw_train, raw_valid = raw_rest.train_test_split(0.1)

    preprocessor = new_preprocessor().fit(raw_train)  # of the other rows it must know nothing
    train_rows = preprocessor.transform(raw_train)
    trainer = new_trainer(
        args.model,
        datasets={"train": train_rows, "valid": preprocessor.transform(raw_valid)},
        label_column=LABEL,
        num_boost_round=args.rounds,
        scaling_config=ScalingConfig(num_workers=args.num_workers),
        run_config=RunConfig(
            name=args.name or f"tabular-{args.model}-{args.rows}",
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=1),
        ),
    )
    result = trainer.fit()
    result.checkpoint.update_metadata({"preprocessor": preprocessor.to_dict()})

    # From here on as somebody would who has the checkpoint and new customers.
    checkpoint = Checkpoint(result.checkpoint.path)
    truth, scores = predicted(args.model, checkpoint, raw_test)
    found = auc(truth, scores)
    baseline = auc(truth, linear_baseline(train_rows, preprocessor.transform(raw_test)))
    print(f"customers   {raw_train.count()} to learn from, {len(truth)} to test on, {truth.mean():.1%} of whom left")
    print(f"auc         {found:.3f} on those to test on; stated are {STATED_AUC}")
    print(f"baseline    {baseline:.3f} by a linear model of the same features; stated are {STATED_GAIN} less")
    print(f"checkpoint  {checkpoint.path}")
    if found < STATED_AUC or found - baseline < STATED_GAIN:
        sys.exit("that is below what this example states")


if __name__ == "__main__":
    main()
