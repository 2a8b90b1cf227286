// Begins: with the server's runs, or with the one that lies in this file.

import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./css/0-base.css";
import "./css/1-views.css";
import { App } from "./app";
import { embedded } from "./embedded";
import { live } from "./live";
import { remembered, shown, watchSystem } from "./theme";

shown(remembered());
watchSystem();
const report = document.getElementById("report");
const place = document.getElementById("app");
if (place !== null) render(<App source={report === null ? live() : embedded(report.textContent ?? "")} />, place);
