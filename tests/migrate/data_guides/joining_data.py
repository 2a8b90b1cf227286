"""Joining data: each join type, keys of other names, suffixes."""

import ray

doubles = ray.data.range(4).map(lambda row: {"id": row["id"], "double": int(row["id"]) * 2})
squares = ray.data.range(6).map(lambda row: {"id": row["id"], "square": int(row["id"]) ** 2})
joined = doubles.join(squares, join_type="inner", num_partitions=2, on=("id",))
assert joined.sort("id").take_all() == [{"id": n, "double": 2 * n, "square": n * n} for n in range(4)]
sizes = {"left_outer": 4, "right_outer": 6, "full_outer": 6, "left_semi": 4, "right_semi": 4, "right_anti": 2}
for join_type, size in sizes.items():
    assert doubles.join(squares, join_type, 2, on=("id",)).count() == size, join_type
assert doubles.join(squares, "left_anti", 2, on=("id",)).take_all() == []
others = squares.rename_columns({"id": "number"}).map(lambda row: {**row, "double": 0})
both = doubles.join(others, "inner", 1, ("id",), right_on=("number",), left_suffix="_l", right_suffix="_r")
assert set(both.columns()) == {"id", "double_l", "double_r", "square"}
