// One file of all modules, their types checked: `node compile.mjs BOKEH_STATIC OUT ENTRY...`. Says what is wrong and
// exits with 1 where something is.

import path from "node:path";
import { carried } from "./carried.mjs";

const [folder, out, ...entries] = process.argv.slice(2);
const { ts } = carried(folder);
const root = path.resolve(import.meta.dirname, "..");
const read = ts.readConfigFile(path.join(root, "tsconfig.json"), ts.sys.readFile);
const { options, errors } = ts.convertCompilerOptionsFromJson(read.config?.compilerOptions ?? {}, root);
options.outFile = path.resolve(out);
options.rootDir = root;
const host = ts.createCompilerHost(options);
host.getDefaultLibLocation = () => path.join(folder, "lib");
host.getDefaultLibFileName = () => path.join(folder, "lib", "lib.es2022.full.d.ts");
const vendored = ["preact.d.ts", "node.d.ts"].map((name) => path.join(root, "vendor", name));
const program = ts.createProgram([...vendored, ...entries.map((entry) => path.resolve(entry))], options, host);
const problems = [...(read.error ? [read.error] : []), ...errors, ...ts.getPreEmitDiagnostics(program)];
if (problems.length > 0) {
  const format = { getCurrentDirectory: () => root, getCanonicalFileName: (name) => name, getNewLine: () => "\n" };
  process.stdout.write(ts.formatDiagnostics(problems, format));
  process.exit(1);
}
const done = program.emit();
if (done.emitSkipped) process.exit(1);
