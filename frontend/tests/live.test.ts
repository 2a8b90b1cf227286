import { expect, test } from "vitest";
import { address } from "../src/live";

test("what is asked is part of the address, and quoted", () => {
  expect(address("runs")).toBe("api/runs");
  expect(address("run", { run: "a/b&c=d#e" })).toBe("api/run?run=a%2Fb%26c%3Dd%23e");
  expect(address("metrics", { run: "a", name: ["x", "y"], from: null, to: undefined, points: 5 })).toBe("api/metrics?run=a&name=x&name=y&points=5");
});
