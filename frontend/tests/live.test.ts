import { test } from "node:test";
import { equal } from "node:assert/strict";
import { address } from "../src/live";

test("what is asked is part of the address, and quoted", () => {
  equal(address("runs"), "api/runs");
  equal(address("run", { run: "a/b&c=d#e" }), "api/run?run=a%2Fb%26c%3Dd%23e");
  equal(address("metrics", { run: "a", name: ["x", "y"], from: null, to: undefined, points: 5 }), "api/metrics?run=a&name=x&name=y&points=5");
});
