import { expect, test } from "vitest";
import { formatRoute, many, numberOf, one, parseRoute, patchQuery, toCompare, toRun, toRuns } from "../src/router";
import type { Route } from "../src/router";

test("an address of nothing is the list", () => {
  for (const hash of ["", "#", "#/", "#/nonsense", "#/run", "#/run/"]) expect(parseRoute(hash).page).toBe("runs");
});

test("a formatted route parses to the same route", () => {
  const odd = ["a/b", ".", "a?b=c&d#e", "ü 100 % \u0000", "a%2Fb", "<img src=x>"];
  for (const text of odd) {
    const routes: Route[] = [
      { page: "run", id: text, tab: "", query: {} },
      { page: "run", id: text, tab: text, query: { q: [text, "", text] } },
      { page: "compare", query: { run: [text, "b"] } },
      { page: "runs", query: { [text]: [text] } },
    ];
    for (const route of routes) expect(parseRoute(formatRoute(route))).toStrictEqual(route);
  }
});

test("an address that is broken is still read", () => {
  expect(parseRoute("#/run/%E0%A4%A/metrics")).toStrictEqual({ page: "run", id: "%E0%A4%A", tab: "metrics", query: {} });
});

test("links", () => {
  expect(toRuns()).toBe("#/");
  expect(toRun("a/b", "metrics")).toBe("#/run/a%2Fb/metrics");
  expect(toCompare(["a", "b"])).toBe("#/compare?run=a&run=b");
});

test("a query is patched, and empty values are removed", () => {
  const query = { q: ["x"], state: ["a", "b"] };
  expect(patchQuery(query, { q: null })).toStrictEqual({ state: ["a", "b"] });
  expect(patchQuery(query, { q: "" })).toStrictEqual({ state: ["a", "b"] });
  expect(patchQuery(query, { state: [], n: "1" })).toStrictEqual({ q: ["x"], n: ["1"] });
  expect(query).toStrictEqual({ q: ["x"], state: ["a", "b"] });
});

test("values of a query", () => {
  const query = parseRoute("#/?a=1&a=2&b=x&c=").query;
  expect(one(query, "a")).toBe("1");
  expect(many(query, "a")).toStrictEqual(["1", "2"]);
  expect(many(query, "z")).toStrictEqual([]);
  expect(numberOf(query, "a")).toBe(1);
  expect(numberOf(query, "b")).toBe(null);
  expect(numberOf(query, "c")).toBe(null);
  expect(numberOf(query, "z")).toBe(null);
});
