import { test } from "node:test";
import { deepEqual } from "node:assert/strict";
import { labelled } from "../src/compare";

test("runs of the same name are told apart by their ids", () => {
  deepEqual(labelled([{ id: "a/x", name: "x" }, { id: "b/x", name: "x" }, { id: "c/y", name: "y" }]), ["a/x", "b/x", "y"]);
});
