// Begins: with the server's runs, or with the one that lies in this file.

import { h, render } from "preact";
import { App } from "./app";
import { embedded } from "./embedded";
import { live } from "./live";
import { remembered, shown, watchSystem } from "./theme";

shown(remembered());
watchSystem();
const report = document.getElementById("report");
const place = document.getElementById("app");
if (place !== null) render(<App source={report === null ? live() : embedded(report.textContent ?? "")} />, place);
