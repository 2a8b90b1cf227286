import { expect, test } from "vitest";
import { labelled } from "../src/compare";

test("runs of the same name are told apart by their ids", () => {
  expect(labelled([{ id: "a/x", name: "x" }, { id: "b/x", name: "x" }, { id: "c/y", name: "y" }])).toStrictEqual(["a/x", "b/x", "y"]);
});
