"""Working with Zarr: chunks as rows, aligned arrays, other chunk sizes, overlap, discovery."""

import numpy as np
import ray
import zarr

store = zarr.open_group("store.zarr", mode="w", zarr_format=2)
store.create_array("images", data=np.arange(200 * 4).reshape(200, 2, 2), chunks=(20, 2, 2))
store.create_array("labels", data=np.arange(200), chunks=(20,))
assert ray.data.read_zarr("store.zarr", allow_full_metadata_scan=True).count() == 20
zarr.consolidate_metadata("store.zarr")
chunks = ray.data.read_zarr("store.zarr").filter(expr="array == 'images'").take_all()
assert [row["chunk"].shape for row in chunks] == [(20, 2, 2)] * 10 and chunks[1]["chunk"].min() == 80
assert [*chunks[1]["chunk_index"]] == [1, 0, 0] and np.array(chunks[1]["chunk_slices"][0]).tolist() == [20, 40]
assert ray.data.read_zarr("store.zarr", array_paths=["labels"], chunk_shapes=[50]).count() == 4
assert ray.data.read_zarr("store.zarr", chunk_shapes={"images": [100], "labels": [200]}).count() == 3
aligned = ray.data.read_zarr("store.zarr", align_axis_0=True, chunk_shapes=[50], overlap=9).take_all()
assert [(row["t_start"], row["t_stop"]) for row in aligned] == [(0, 50), (50, 100), (100, 150), (150, 200)]
assert [len(row["labels"]) for row in aligned] == [59, 59, 59, 50]
