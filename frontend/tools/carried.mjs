// TypeScript's compiler and a minifier (terser), as the Python package `bokeh` carries them: the one way to have them
// without a second package manager. There they are in one bundle with a command around them; the bundle is run without
// the command, and asked for the two. Names in it are short and may differ from release to release: it is pinned.

import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";

export function carried(folder) {
  const file = path.join(folder, "js", "compiler.js");
  const text = fs.readFileSync(file, "utf8");
  const command = /var \w+=\w+\(process\.argv\.slice\(2\)\)\.options\(\{code:/.exec(text);
  const compiler = /(\w+)=C0\((\w+)\(\)\)[^]{0,4000}?\1\.default\.ModuleKind/.exec(text);
  const steps = /function\*(\w+)\(a,s,u\)\{u&&typeof process=="object"&&process\.env&&typeof process\.env\.TERSER/.exec(text);
  const minify = steps && new RegExp(`async function (\\w+)\\(a,s,u\\)\\{let \\w+=${steps[1]}\\(`).exec(text);
  if (!command || !compiler || !minify) throw new Error(`${file} has no compiler, or is of another version of bokeh`);
  const body = `${text.slice(0, command.index)};return { ts: ${compiler[2]}(), minify: ${minify[1]} };`;
  const made = new Function("require", "module", "exports", "__filename", "__dirname", body);
  return made(createRequire(file), { exports: {} }, {}, file, path.dirname(file));
}
