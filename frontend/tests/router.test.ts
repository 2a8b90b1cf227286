import { test } from "node:test";
import { deepEqual, equal } from "node:assert/strict";
import { formatted, many, numberOf, one, parsed, patched, toCompare, toRun, toRuns } from "../src/router";
import type { Route } from "../src/router";

test("an address of nothing is the list", () => {
  for (const hash of ["", "#", "#/", "#/nonsense", "#/run", "#/run/"]) equal(parsed(hash).page, "runs");
});

test("what is formatted is parsed again, whatever stands in it", () => {
  const odd = ["a/b", ".", "a?b=c&d#e", "ü 100 % \u0000", "a%2Fb", "<img src=x>"];
  for (const text of odd) {
    const routes: Route[] = [
      { page: "run", id: text, tab: "", query: {} },
      { page: "run", id: text, tab: text, query: { q: [text, "", text] } },
      { page: "compare", query: { run: [text, "b"] } },
      { page: "runs", query: { [text]: [text] } },
    ];
    for (const route of routes) deepEqual(parsed(formatted(route)), route);
  }
});

test("an address that is broken is still read", () => {
  deepEqual(parsed("#/run/%E0%A4%A/metrics"), { page: "run", id: "%E0%A4%A", tab: "metrics", query: {} });
});

test("links", () => {
  equal(toRuns(), "#/");
  equal(toRun("a/b", "metrics"), "#/run/a%2Fb/metrics");
  equal(toCompare(["a", "b"]), "#/compare?run=a&run=b");
});

test("a query is patched, and what is empty is taken out", () => {
  const query = { q: ["x"], state: ["a", "b"] };
  deepEqual(patched(query, { q: null }), { state: ["a", "b"] });
  deepEqual(patched(query, { q: "" }), { state: ["a", "b"] });
  deepEqual(patched(query, { state: [], n: "1" }), { q: ["x"], n: ["1"] });
  deepEqual(query, { q: ["x"], state: ["a", "b"] });
});

test("values of a query", () => {
  const query = parsed("#/?a=1&a=2&b=x&c=").query;
  equal(one(query, "a"), "1");
  deepEqual(many(query, "a"), ["1", "2"]);
  deepEqual(many(query, "z"), []);
  equal(numberOf(query, "a"), 1);
  equal(numberOf(query, "b"), null);
  equal(numberOf(query, "c"), null);
  equal(numberOf(query, "z"), null);
});
