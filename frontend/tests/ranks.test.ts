import { test } from "node:test";
import { deepEqual, equal, ok } from "node:assert/strict";
import { band, counted, hasMeasure, ordered, parsedRanks, ranked, useLines } from "../src/views/ranks";
import { attempts, use, worker } from "./sample";

const failed = attempts()[0];
if (failed === undefined) throw new Error("the sample has no attempts");

test("what failed first stands first, then the other failures, then who was ended", () => {
  deepEqual(ordered(ranked(failed), "worst", false).map((each) => each.rank), [2, 0, 1, 3]);
});

test("a worker that the kernel killed is told apart from one that raised", () => {
  const workers = ranked(failed);
  deepEqual(workers.map((each) => each.wasKilled), [false, false, true, false]);
  ok(workers[2]?.cause?.startsWith("out of memory: killed by the kernel"));
  ok(workers[2]?.isCause);
});

test("the cause of a worker is that of its failure, where the worker has none", () => {
  equal(ranked(failed)[1]?.cause, "RuntimeError: connection closed by peer");
  equal(ranked(failed)[3]?.cause, null);
});

test("a worker that hangs has what is said of it as its cause", () => {
  const hangs = attempts()[1];
  ok(hangs !== undefined);
  const workers = ranked({ ...hangs, workers: [worker(2, { state: "hangs" }), worker(3, { state: "hangs" }), worker(0)] });
  deepEqual(workers.map((each) => each.cause?.slice(0, 6) ?? null), [null, "rank 3", null]);
});

test("a worker that was ended with the others does not count as killed", () => {
  const ended = { ...failed, failures: [], workers: [worker(0, { state: "gone", failure: "killed by SIGTERM" })] };
  equal(ranked(ended)[0]?.wasKilled, false);
});

test("equal ranks keep the order of their numbers, whichever way one sorts", () => {
  const same = { ...failed, failures: [], workers: [3, 1, 2, 0].map((rank) => worker(rank, { cpu: 1 })) };
  deepEqual(ordered(ranked(same), "cpu", true).map((each) => each.rank), [0, 1, 2, 3]);
  deepEqual(ordered(ranked(same), "cpu", false).map((each) => each.rank), [0, 1, 2, 3]);
});

test("what is not measured sorts below what is", () => {
  const some = { ...failed, failures: [], workers: [worker(0, { rss_bytes: null }), worker(1, { rss_bytes: 5 })] };
  deepEqual(ordered(ranked(some), "rss_bytes", true).map((each) => each.rank), [1, 0]);
});

test("states are counted, worst first", () => {
  deepEqual(counted(failed.workers), [["failed", 3], ["gone", 1]]);
});

test("ranks are read as people type them", () => {
  deepEqual(parsedRanks("0-3, 7"), [0, 1, 2, 3, 7]);
  deepEqual(parsedRanks("5,5, 1"), [1, 5]);
  deepEqual(parsedRanks(" "), []);
  for (const wrong of ["x", "3-1", "1-", "-1", "0-99999999", "1.5"]) equal(parsedRanks(wrong), null, wrong);
});

test("each picked rank has a line, the others a band with their mean", () => {
  const lines = useLines(use(20), "cpu", [3, 4]);
  deepEqual(lines.map((line) => line.name), ["mean of 18 ranks", "rank 3", "rank 4"]);
  equal(useLines(use(2), "cpu", [0, 1]).length, 2);
});

test("a band holds every value between its least and its greatest", () => {
  const series = use(50);
  const made = band(series, "rss_bytes");
  ok(made !== null && made.low !== undefined && made.high !== undefined);
  equal(Math.min(...made.low.map(Number)), Math.min(...series.flatMap((each) => each.rss_bytes)));
  equal(Math.max(...made.high.map(Number)), Math.max(...series.flatMap((each) => each.rss_bytes)));
  made.y.forEach((mean, index) => ok(Number(mean) >= Number(made.low?.[index]) && Number(mean) <= Number(made.high?.[index])));
  ok(made.x.length <= 240 && made.x.every((x, index) => index === 0 || x > (made.x[index - 1] ?? 0)));
});

test("one sample makes a band too", () => {
  const one = use(3, 1, 1);
  equal(band(one, "cpu")?.y.length, 1);
  equal(band([], "cpu"), null);
});

test("each GPU of a rank has a line of its own", () => {
  const series = use(1).map((each) => ({ ...each, gpu_used_bytes: [each.rss_bytes, each.rss_bytes] }));
  deepEqual(useLines(series, "gpu_used_bytes", [0]).map((line) => line.name), ["rank 0, GPU 0", "rank 0, GPU 1"]);
});

test("what nobody measured is no plot", () => {
  equal(hasMeasure(use(1).map((each) => ({ ...each, gpu_busy: [each.at.map(() => null)] })), "gpu_busy"), false);
  equal(hasMeasure(use(1), "gpu_busy"), true);
  equal(hasMeasure([], "cpu"), false);
});
