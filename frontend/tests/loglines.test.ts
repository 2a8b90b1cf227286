import { test } from "node:test";
import { deepEqual, equal, ok } from "node:assert/strict";
import { asText, chunks, first, from, marked, MOST, newer, older, readable } from "../src/views/loglines";
import { logText, paged } from "./sample";

const LINES = logText(2000);

test("pages towards the beginning make up the whole file, each line once", () => {
  let held = first(paged(LINES, { limit: 300 }));
  while (held.before !== null) held = older(held, paged(LINES, { before: held.before, limit: 300 }));
  deepEqual(held.lines.map((line) => line.text), LINES);
  ok(held.atEnd);
});

test("what is written later comes at the end, each line once", () => {
  const begun = LINES.slice(0, 700);
  let held = first(paged(begun, {}));
  held = newer(held, paged(LINES, { after: from(held, ""), limit: 400 }), 400);
  equal(held.atEnd, false);
  while (!held.atEnd) held = newer(held, paged(LINES, { after: from(held, ""), limit: 400 }), 400);
  deepEqual(held.lines.map((line) => line.text), LINES.slice(200));
});

test("nothing new is nothing new, however often one asks", () => {
  const held = first(paged(LINES, {}));
  equal(newer(held, paged(LINES, { after: from(held, "") })), held);
  equal(newer(held, paged(LINES, { after: held.after })), held);
});

test("half a line is replaced when it comes again as a whole", () => {
  const held = first({ lines: [{ offset: 0, text: "a" }, { offset: 2, text: "ha" }], before: null, after: 2, num_bytes: 4 });
  const grown = newer(held, { lines: [{ offset: 2, text: "half" }, { offset: 7, text: "b" }], before: 2, after: 9, num_bytes: 9 });
  deepEqual(grown.lines.map((line) => line.text), ["a", "half", "b"]);
});

test("a file that was written anew is shown anew", () => {
  const held = first({ lines: [{ offset: 0, text: "old" }], before: null, after: 400, num_bytes: 400 });
  const anew = newer(held, { lines: [{ offset: 0, text: "new" }], before: null, after: 4, num_bytes: 4 });
  deepEqual(anew.lines.map((line) => line.text), ["new"]);
});

test("no more lines are held than can be shown, and those let go can be asked for again", () => {
  const many = logText(MOST + 500);
  let held = first(paged(many, { limit: 500 }));
  while (held.before !== null) held = older(held, paged(many, { before: held.before, limit: 500 }));
  equal(held.lines.length, MOST);
  equal(held.atEnd, false);
  equal(held.lines[0]?.text, many[0]);
  for (let turn = 0; turn < 2; turn += 1) held = newer(held, paged(many, { after: held.after, limit: 500 }));
  ok(held.atEnd);
  equal(held.lines.length, MOST);
  equal(held.lines[MOST - 1]?.text, many[MOST + 499]);
  equal(held.before, held.lines[0]?.offset);
});

test("pieces that did not change stay the same ones", () => {
  const held = first(paged(LINES, { limit: 550 }));
  const before = chunks(held.lines);
  const more = newer(held, paged([...LINES, "one more"], { after: held.after }));
  const after = chunks(more.lines, before);
  ok(before.slice(0, 5).every((chunk, index) => chunk === after[index]));
  deepEqual(after.flatMap((chunk) => chunk.lines), more.lines);
  equal(new Set(after.map((chunk) => chunk.key)).size, after.length);
});

test("pieces hold all lines in their order also when older ones come", () => {
  let held = first(paged(LINES, { limit: 130 }));
  let made = chunks(held.lines);
  while (held.before !== null) {
    held = older(held, paged(LINES, { before: held.before, limit: 170 }));
    made = chunks(held.lines, made);
    deepEqual(made.flatMap((chunk) => chunk.lines), held.lines);
  }
});

test("lines read as a terminal would leave them", () => {
  equal(readable("\x1b[31mred\x1b[0m \x1b]0;title\x07end"), "red end");
  equal(readable(" 10%|#\r 50%|#####\r100%|##########\r"), "100%|##########");
  equal(readable("plain"), "plain");
  equal(readable("\r"), "");
});

test("what is found is marked, and nothing is lost by it", () => {
  deepEqual(marked("Loss loss", "loss"), [{ text: "Loss", found: true }, { text: " ", found: false }, { text: "loss", found: true }]);
  for (const text of ["aaa", "<b>a</b>", "İaİ", "", "ba"]) equal(marked(text, "a").map((bit) => bit.text).join(""), text);
});

test("what is copied ends each line", () => {
  equal(asText([{ offset: 0, text: "a" }, { offset: 2, text: "\x1b[1mb" }]), "a\nb\n");
});
