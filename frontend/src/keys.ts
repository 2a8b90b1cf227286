// Keyboard shortcuts of the page. Rows of lists are marked with `data-item`, search fields with `data-search`, and tabs
// with `role="tab"`.

import { go, toRuns } from "./router";

export const KEYS: readonly (readonly [string, string])[] = [
  ["/", "search"],
  ["j  k  ↓  ↑", "next and previous row of a list"],
  ["Enter", "open the row"],
  ["x", "mark the row, to compare"],
  ["[  ]", "previous and next tab"],
  ["g r", "to the list of runs"],
  ["t", "light, dark or system theme"],
  ["?", "this list"],
  ["Esc", "close, or leave the search field"],
  ["+  -  ←  →  0", "on a plot: zoom, pan, reset"],
];

export interface KeyActions { readonly help: () => void; readonly close: () => boolean; readonly theme: () => void }

export function listen(actions: KeyActions): () => void {
  let before = "";
  let beforeAt = 0;
  const handleKey = (event: KeyboardEvent) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target instanceof HTMLElement ? event.target : document.body;
    if (event.key === "Escape") {
      if (actions.close() || !isField(target)) return;
      // A browser would clear the field without an event.
      event.preventDefault();
      target.blur();
      return;
    }
    if (isField(target)) return;
    const key = event.timeStamp - beforeAt < 1000 && before === "g" ? `g ${event.key}` : event.key;
    before = event.key;
    beforeAt = event.timeStamp;
    if (act(key, target, actions)) event.preventDefault();
  };
  document.addEventListener("keydown", handleKey);
  return () => document.removeEventListener("keydown", handleKey);
}

function act(key: string, target: HTMLElement, actions: KeyActions): boolean {
  switch (key) {
    case "/": return focus(document.querySelector<HTMLElement>("[data-search]"));
    case "j": return moveFocus(target, 1);
    case "k": return moveFocus(target, -1);
    case "ArrowDown": return target.closest("[data-item]") !== null && moveFocus(target, 1);
    case "ArrowUp": return target.closest("[data-item]") !== null && moveFocus(target, -1);
    case "Enter": return openRow(target);
    case "x": return click(target.closest("[data-item]")?.querySelector("input[type=checkbox]"));
    case "[": return switchTab(-1);
    case "]": return switchTab(1);
    case "g r": return go(toRuns()), true;
    case "t": return actions.theme(), true;
    case "?": return actions.help(), true;
    default: return false;
  }
}

function moveFocus(target: HTMLElement, by: 1 | -1): boolean {
  const items = [...document.querySelectorAll<HTMLElement>("[data-item]")];
  const here = items.indexOf(target.closest<HTMLElement>("[data-item]") ?? document.body);
  return focus(items[here < 0 ? (by > 0 ? 0 : items.length - 1) : Math.max(0, Math.min(items.length - 1, here + by))]);
}

function openRow(target: HTMLElement): boolean {
  return target.matches("[data-item]") && click(target.querySelector("[data-open]") ?? target.querySelector("a"));
}

function switchTab(by: 1 | -1): boolean {
  const tabs = [...document.querySelectorAll<HTMLElement>("[role=tab]")];
  const here = tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
  return here >= 0 && click(tabs[(here + by + tabs.length) % tabs.length]);
}

function focus(element: HTMLElement | null | undefined): boolean {
  if (!element) return false;
  element.focus();
  element.scrollIntoView({ block: "nearest" });
  if (element instanceof HTMLInputElement) element.select();
  return true;
}

function click(element: Element | null | undefined): boolean {
  if (!(element instanceof HTMLElement)) return false;
  element.click();
  return true;
}

function isField(element: HTMLElement): boolean {
  return element.matches("input:not([type=checkbox]):not([type=range]):not([type=radio]), textarea, select, [contenteditable]");
}
