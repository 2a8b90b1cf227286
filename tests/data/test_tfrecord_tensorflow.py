"""TFRecord files that TensorFlow writes and reads, and tf.data pipelines that data processes run."""

import numpy as np
import pytest

from paceline.data import from_items, from_tf, read_tfrecords

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.slow  # `test_tfrecord.py` has the smoke test.


def example(number):
    def feature(**kinds):
        return tf.train.Feature(**kinds)

    features = {
        "whole": feature(int64_list=tf.train.Int64List(value=[number, -number])),
        "float": feature(float_list=tf.train.FloatList(value=[number / 2])),
        "bytes": feature(bytes_list=tf.train.BytesList(value=[f"row {number}".encode()])),
        "some": feature(int64_list=tf.train.Int64List(value=range(number))),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


@pytest.mark.parametrize(("name", "compression"), [("rows.tfrecord", ""), ("rows.tfrecord.gz", "GZIP")])
def test_what_tensorflow_wrote_is_read(tmp_path, name, compression):
    with tf.io.TFRecordWriter(str(tmp_path / name), options=compression) as writer:
        for number in range(4):
            writer.write(example(number))
    rows = read_tfrecords(str(tmp_path / name)).take_all()
    assert [list(row["whole"]) for row in rows] == [[0, 0], [1, -1], [2, -2], [3, -3]]
    assert [row["float"] for row in rows] == [0.0, 0.5, 1.0, 1.5]
    assert [row["bytes"] for row in rows] == [b"row 0", b"row 1", b"row 2", b"row 3"]
    assert [list(row["some"]) for row in rows] == [[], [0], [0, 1], [0, 1, 2]]


def test_what_is_written_tensorflow_reads(tmp_path):
    rows = [{"whole": -i, "float": i / 2, "text": f"row {i}", "list": np.arange(2) + i} for i in range(4)]
    from_items(rows).write_tfrecords(str(tmp_path))
    features = {
        "whole": tf.io.FixedLenFeature([], tf.int64),
        "float": tf.io.FixedLenFeature([], tf.float32),
        "text": tf.io.FixedLenFeature([], tf.string),
        "list": tf.io.FixedLenFeature([2], tf.int64),
    }
    files = sorted(str(file) for file in tmp_path.rglob("*.tfrecords"))
    parsed = tf.data.TFRecordDataset(files).map(lambda record: tf.io.parse_single_example(record, features))
    found = [{name: np.asarray(value).tolist() for name, value in row.items()} for row in parsed]
    assert found == [{"whole": -i, "float": i / 2, "text": f"row {i}".encode(), "list": [i, i + 1]} for i in range(4)]


def test_a_pipeline_is_run_where_it_is_sent():
    pipeline = tf.data.Dataset.from_tensor_slices({"x": np.arange(6)}).map(
        lambda row: {"x": row["x"] * 2, "name": tf.strings.as_string(row["x"])}
    )
    rows = from_tf(pipeline).map_batches(lambda batch: {**batch, "y": batch["x"] + 1}).take_all()
    assert [(row["x"], row["name"], row["y"]) for row in rows] == [(2 * i, b"%d" % i, 2 * i + 1) for i in range(6)]
