import { assert, expect, test } from "vitest";
import { meanLine, countStates, hasMeasure, sortWorkers, parseRanks, describeWorkers, usageLines } from "../src/views/ranks";
import { attempts, use, worker } from "./sample";

const failed = attempts()[0];
if (failed === undefined) throw new Error("the sample has no attempts");

test("what failed first stands first, then the other failures, then who was ended", () => {
  expect(sortWorkers(describeWorkers(failed), "worst", false).map((each) => each.rank)).toStrictEqual([2, 0, 1, 3]);
});

test("a killed worker is distinguished from one that raised", () => {
  const workers = describeWorkers(failed);
  expect(workers.map((each) => each.wasKilled)).toStrictEqual([false, false, true, false]);
  expect(workers[2]?.cause?.startsWith("out of memory: killed by the kernel")).toBe(true);
  expect(workers[2]?.isCause).toBe(true);
});

test("the cause of a worker is that of its failure, where the worker has none", () => {
  expect(describeWorkers(failed)[1]?.cause).toBe("RuntimeError: connection closed by peer");
  expect(describeWorkers(failed)[3]?.cause).toBe(null);
});

test("a worker that hangs has what is formatLabel of it as its cause", () => {
  const hangs = attempts()[1];
  assert(hangs !== undefined);
  const workers = describeWorkers({ ...hangs, workers: [worker(2, { state: "hangs" }), worker(3, { state: "hangs" }), worker(0)] });
  expect(workers.map((each) => each.cause?.slice(0, 6) ?? null)).toStrictEqual([null, "rank 3", null]);
});

test("a worker that was ended with the others does not count as killed", () => {
  const ended = { ...failed, failures: [], workers: [worker(0, { state: "gone", failure: "killed by SIGTERM" })] };
  expect(describeWorkers(ended)[0]?.wasKilled).toBe(false);
});

test("equal ranks keep the order of their numbers, whichever way one sorts", () => {
  const same = { ...failed, failures: [], workers: [3, 1, 2, 0].map((rank) => worker(rank, { cpu: 1 })) };
  expect(sortWorkers(describeWorkers(same), "cpu", true).map((each) => each.rank)).toStrictEqual([0, 1, 2, 3]);
  expect(sortWorkers(describeWorkers(same), "cpu", false).map((each) => each.rank)).toStrictEqual([0, 1, 2, 3]);
});

test("what is not measured sorts below what is", () => {
  const some = { ...failed, failures: [], workers: [worker(0, { rss_bytes: null }), worker(1, { rss_bytes: 5 })] };
  expect(sortWorkers(describeWorkers(some), "rss_bytes", true).map((each) => each.rank)).toStrictEqual([1, 0]);
});

test("states are counted, worst first", () => {
  expect(countStates(failed.workers)).toStrictEqual([["failed", 3], ["gone", 1]]);
});

test("ranks are read as people type them", () => {
  expect(parseRanks("0-3, 7")).toStrictEqual([0, 1, 2, 3, 7]);
  expect(parseRanks("5,5, 1")).toStrictEqual([1, 5]);
  expect(parseRanks(" ")).toStrictEqual([]);
  for (const wrong of ["x", "3-1", "1-", "-1", "0-99999999", "1.5"]) expect(parseRanks(wrong), wrong).toBe(null);
});

test("each picked rank has a line, the others one line with their mean", () => {
  const lines = usageLines(use(20), "cpu", [3, 4]);
  expect(lines.map((line) => line.name)).toStrictEqual(["mean of 18 ranks", "rank 3", "rank 4"]);
  expect(usageLines(use(2), "cpu", [0, 1]).length).toBe(2);
});

test("a band holds every value between its least and its greatest", () => {
  const series = use(50);
  const made = meanLine(series, "rss_bytes");
  assert(made !== null && made.low !== undefined && made.high !== undefined);
  expect(Math.min(...made.low.map(Number))).toBe(Math.min(...series.flatMap((each) => each.rss_bytes)));
  expect(Math.max(...made.high.map(Number))).toBe(Math.max(...series.flatMap((each) => each.rss_bytes)));
  made.y.forEach((mean, index) => expect(Number(mean) >= Number(made.low?.[index]) && Number(mean) <= Number(made.high?.[index])).toBe(true));
  expect(made.x.length <= 240 && made.x.every((x, index) => index === 0 || x > (made.x[index - 1] ?? 0))).toBe(true);
});

test("one sample makes a band too", () => {
  const one = use(3, 1, 1);
  expect(meanLine(one, "cpu")?.y.length).toBe(1);
  expect(meanLine([], "cpu")).toBe(null);
});

test("each GPU of a rank has a line of its own", () => {
  const series = use(1).map((each) => ({ ...each, gpu_used_bytes: [each.rss_bytes, each.rss_bytes] }));
  expect(usageLines(series, "gpu_used_bytes", [0]).map((line) => line.name)).toStrictEqual(["rank 0, GPU 0", "rank 0, GPU 1"]);
});

test("what nobody measured is no plot", () => {
  expect(hasMeasure(use(1).map((each) => ({ ...each, gpu_busy: [each.at.map(() => null)] })), "gpu_busy")).toBe(false);
  expect(hasMeasure(use(1), "gpu_busy")).toBe(true);
  expect(hasMeasure([], "cpu")).toBe(false);
});
