import { expect, test } from "vitest";
import { asText, chunks, startBuffer, nextOffset, highlight, MOST, appendPage, prependPage, readable } from "../src/views/loglines";
import { logText, paged } from "./sample";

const LINES = logText(2000);

test("pages towards the beginning make up the whole file, each line once", () => {
  let buffer = startBuffer(paged(LINES, { limit: 300 }));
  while (buffer.before !== null) buffer = prependPage(buffer, paged(LINES, { before: buffer.before, limit: 300 }));
  expect(buffer.lines.map((line) => line.text)).toStrictEqual(LINES);
  expect(buffer.atEnd).toBe(true);
});

test("what is written later comes at the end, each line once", () => {
  const begun = LINES.slice(0, 700);
  let buffer = startBuffer(paged(begun, {}));
  buffer = appendPage(buffer, paged(LINES, { after: nextOffset(buffer, ""), limit: 400 }), 400);
  expect(buffer.atEnd).toBe(false);
  while (!buffer.atEnd) buffer = appendPage(buffer, paged(LINES, { after: nextOffset(buffer, ""), limit: 400 }), 400);
  expect(buffer.lines.map((line) => line.text)).toStrictEqual(LINES.slice(200));
});

test("nothing new is nothing new, however often one asks", () => {
  const buffer = startBuffer(paged(LINES, {}));
  expect(appendPage(buffer, paged(LINES, { after: nextOffset(buffer, "") }))).toBe(buffer);
  expect(appendPage(buffer, paged(LINES, { after: buffer.after }))).toBe(buffer);
});

test("half a line is replaced when it comes again as a whole", () => {
  const buffer = startBuffer({ lines: [{ offset: 0, text: "a" }, { offset: 2, text: "ha" }], before: null, after: 2, num_bytes: 4 });
  const grown = appendPage(buffer, { lines: [{ offset: 2, text: "half" }, { offset: 7, text: "b" }], before: 2, after: 9, num_bytes: 9 });
  expect(grown.lines.map((line) => line.text)).toStrictEqual(["a", "half", "b"]);
});

test("a file that was written anew is shown anew", () => {
  const buffer = startBuffer({ lines: [{ offset: 0, text: "old" }], before: null, after: 400, num_bytes: 400 });
  const anew = appendPage(buffer, { lines: [{ offset: 0, text: "new" }], before: null, after: 4, num_bytes: 4 });
  expect(anew.lines.map((line) => line.text)).toStrictEqual(["new"]);
});

test("no more lines are buffer than can be shown, and those let go can be asked for again", () => {
  const many = logText(MOST + 500);
  let buffer = startBuffer(paged(many, { limit: 500 }));
  while (buffer.before !== null) buffer = prependPage(buffer, paged(many, { before: buffer.before, limit: 500 }));
  expect(buffer.lines.length).toBe(MOST);
  expect(buffer.atEnd).toBe(false);
  expect(buffer.lines[0]?.text).toBe(many[0]);
  for (let turn = 0; turn < 2; turn += 1) buffer = appendPage(buffer, paged(many, { after: buffer.after, limit: 500 }));
  expect(buffer.atEnd).toBe(true);
  expect(buffer.lines.length).toBe(MOST);
  expect(buffer.lines[MOST - 1]?.text).toBe(many[MOST + 499]);
  expect(buffer.before).toBe(buffer.lines[0]?.offset);
});

test("pieces that did not change stay the same ones", () => {
  const buffer = startBuffer(paged(LINES, { limit: 550 }));
  const before = chunks(buffer.lines);
  const more = appendPage(buffer, paged([...LINES, "one more"], { after: buffer.after }));
  const after = chunks(more.lines, before);
  expect(before.slice(0, 5).every((chunk, index) => chunk === after[index])).toBe(true);
  expect(after.flatMap((chunk) => chunk.lines)).toStrictEqual(more.lines);
  expect(new Set(after.map((chunk) => chunk.key)).size).toBe(after.length);
});

test("pieces hold all lines in their order also when older ones come", () => {
  let buffer = startBuffer(paged(LINES, { limit: 130 }));
  let made = chunks(buffer.lines);
  while (buffer.before !== null) {
    buffer = prependPage(buffer, paged(LINES, { before: buffer.before, limit: 170 }));
    made = chunks(buffer.lines, made);
    expect(made.flatMap((chunk) => chunk.lines)).toStrictEqual(buffer.lines);
  }
});

test("lines read as a terminal would leave them", () => {
  expect(readable("\x1b[31mred\x1b[0m \x1b]0;title\x07end")).toBe("red end");
  expect(readable(" 10%|#\r 50%|#####\r100%|##########\r")).toBe("100%|##########");
  expect(readable("plain")).toBe("plain");
  expect(readable("\r")).toBe("");
});

test("matches are highlighted, and nothing is lost by it", () => {
  expect(highlight("Loss loss", "loss")).toStrictEqual([{ text: "Loss", found: true }, { text: " ", found: false }, { text: "loss", found: true }]);
  for (const text of ["aaa", "<b>a</b>", "İaİ", "", "ba"]) expect(highlight(text, "a").map((bit) => bit.text).join("")).toBe(text);
});

test("what is copied ends each line", () => {
  expect(asText([{ offset: 0, text: "a" }, { offset: 2, text: "\x1b[1mb" }])).toBe("a\nb\n");
});
