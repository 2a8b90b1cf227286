import { expect, test } from "vitest";
import { asText, chunks, first, from, marked, MOST, newer, older, readable } from "../src/views/loglines";
import { logText, paged } from "./sample";

const LINES = logText(2000);

test("pages towards the beginning make up the whole file, each line once", () => {
  let held = first(paged(LINES, { limit: 300 }));
  while (held.before !== null) held = older(held, paged(LINES, { before: held.before, limit: 300 }));
  expect(held.lines.map((line) => line.text)).toStrictEqual(LINES);
  expect(held.atEnd).toBe(true);
});

test("what is written later comes at the end, each line once", () => {
  const begun = LINES.slice(0, 700);
  let held = first(paged(begun, {}));
  held = newer(held, paged(LINES, { after: from(held, ""), limit: 400 }), 400);
  expect(held.atEnd).toBe(false);
  while (!held.atEnd) held = newer(held, paged(LINES, { after: from(held, ""), limit: 400 }), 400);
  expect(held.lines.map((line) => line.text)).toStrictEqual(LINES.slice(200));
});

test("nothing new is nothing new, however often one asks", () => {
  const held = first(paged(LINES, {}));
  expect(newer(held, paged(LINES, { after: from(held, "") }))).toBe(held);
  expect(newer(held, paged(LINES, { after: held.after }))).toBe(held);
});

test("half a line is replaced when it comes again as a whole", () => {
  const held = first({ lines: [{ offset: 0, text: "a" }, { offset: 2, text: "ha" }], before: null, after: 2, num_bytes: 4 });
  const grown = newer(held, { lines: [{ offset: 2, text: "half" }, { offset: 7, text: "b" }], before: 2, after: 9, num_bytes: 9 });
  expect(grown.lines.map((line) => line.text)).toStrictEqual(["a", "half", "b"]);
});

test("a file that was written anew is shown anew", () => {
  const held = first({ lines: [{ offset: 0, text: "old" }], before: null, after: 400, num_bytes: 400 });
  const anew = newer(held, { lines: [{ offset: 0, text: "new" }], before: null, after: 4, num_bytes: 4 });
  expect(anew.lines.map((line) => line.text)).toStrictEqual(["new"]);
});

test("no more lines are held than can be shown, and those let go can be asked for again", () => {
  const many = logText(MOST + 500);
  let held = first(paged(many, { limit: 500 }));
  while (held.before !== null) held = older(held, paged(many, { before: held.before, limit: 500 }));
  expect(held.lines.length).toBe(MOST);
  expect(held.atEnd).toBe(false);
  expect(held.lines[0]?.text).toBe(many[0]);
  for (let turn = 0; turn < 2; turn += 1) held = newer(held, paged(many, { after: held.after, limit: 500 }));
  expect(held.atEnd).toBe(true);
  expect(held.lines.length).toBe(MOST);
  expect(held.lines[MOST - 1]?.text).toBe(many[MOST + 499]);
  expect(held.before).toBe(held.lines[0]?.offset);
});

test("pieces that did not change stay the same ones", () => {
  const held = first(paged(LINES, { limit: 550 }));
  const before = chunks(held.lines);
  const more = newer(held, paged([...LINES, "one more"], { after: held.after }));
  const after = chunks(more.lines, before);
  expect(before.slice(0, 5).every((chunk, index) => chunk === after[index])).toBe(true);
  expect(after.flatMap((chunk) => chunk.lines)).toStrictEqual(more.lines);
  expect(new Set(after.map((chunk) => chunk.key)).size).toBe(after.length);
});

test("pieces hold all lines in their order also when older ones come", () => {
  let held = first(paged(LINES, { limit: 130 }));
  let made = chunks(held.lines);
  while (held.before !== null) {
    held = older(held, paged(LINES, { before: held.before, limit: 170 }));
    made = chunks(held.lines, made);
    expect(made.flatMap((chunk) => chunk.lines)).toStrictEqual(held.lines);
  }
});

test("lines read as a terminal would leave them", () => {
  expect(readable("\x1b[31mred\x1b[0m \x1b]0;title\x07end")).toBe("red end");
  expect(readable(" 10%|#\r 50%|#####\r100%|##########\r")).toBe("100%|##########");
  expect(readable("plain")).toBe("plain");
  expect(readable("\r")).toBe("");
});

test("what is found is marked, and nothing is lost by it", () => {
  expect(marked("Loss loss", "loss")).toStrictEqual([{ text: "Loss", found: true }, { text: " ", found: false }, { text: "loss", found: true }]);
  for (const text of ["aaa", "<b>a</b>", "İaİ", "", "ba"]) expect(marked(text, "a").map((bit) => bit.text).join("")).toBe(text);
});

test("what is copied ends each line", () => {
  expect(asText([{ offset: 0, text: "a" }, { offset: 2, text: "\x1b[1mb" }])).toBe("a\nb\n");
});
