// The entry point: shows the server's runs, or the run embedded in this file.

import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./css/0-base.css";
import "./css/1-views.css";
import { App } from "./app";
import { embeddedSource } from "./embedded";
import { liveSource } from "./live";
import { loadTheme, applyTheme, watchSystem } from "./theme";

applyTheme(loadTheme());
watchSystem();
const report = document.getElementById("report");
const place = document.getElementById("app");
if (place !== null) render(<App source={report === null ? liveSource() : embeddedSource(report.textContent ?? "")} />, place);
