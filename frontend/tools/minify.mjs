// `node minify.mjs BOKEH_STATIC < script > smaller`: the licence of what is vendored stays.

import fs from "node:fs";
import { carried } from "./carried.mjs";

const { minify } = carried(process.argv[2]);
const { code } = await minify(fs.readFileSync(0, "utf8"), { ecma: 2022, format: { comments: /MIT License/, max_line_len: 1000 } });
process.stdout.write(`${code}\n`);
