// One script and one style, with names that do not change: what is built is committed, and a report carries both inside.

import { readFileSync } from "node:fs";
import { defineConfig } from "vitest/config";

const { dependencies } = JSON.parse(readFileSync("package.json", "utf8"));

export default defineConfig({
  base: "./",
  plugins: [licensed()],
  build: {
    outDir: "../src/paceline/_dashboard/page",
    emptyOutDir: true,
    // The first that know `light-dark()`; for older ones every colour would be written out twice.
    target: ["chrome123", "firefox120", "safari17.5"],
    modulePreload: false,
    reportCompressedSize: false,
    rolldownOptions: { output: { entryFileNames: "app.js", assetFileNames: "app[extname]" } },
  },
  // What they test is pure: one file cannot disturb another.
  test: { include: ["tests/*.test.ts"], isolate: false },
});

// The licences of what is bundled stand in the script itself: a report carries it to where no other file goes.
function licensed() {
  return {
    name: "licensed",
    generateBundle(_, bundle) {
      const texts = Object.keys(dependencies).map((name) => `${name}\n\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim()}`);
      bundle["app.js"].code = `/*!\n${texts.join("\n\n")}\n*/\n${bundle["app.js"].code}`;
    },
  };
}
