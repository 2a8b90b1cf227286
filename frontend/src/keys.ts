// What keys do anywhere on the page. Lists take part by marking their rows with `data-item`, search fields by
// `data-search`, and tabs by `role="tab"`.

import { go, toRuns } from "./router";

export const KEYS: readonly (readonly [string, string])[] = [
  ["/", "search"],
  ["j  k  ↓  ↑", "next and previous row of a list"],
  ["Enter", "open the row"],
  ["x", "mark the row, to compare"],
  ["[  ]", "previous and next tab"],
  ["g r", "to the list of runs"],
  ["t", "light, dark, or as the system has it"],
  ["?", "this list"],
  ["Esc", "close, or leave the search field"],
  ["+  -  ←  →  0", "on a plot: zoom, pan, all of it"],
];

export interface KeyActions { readonly help: () => void; readonly close: () => boolean; readonly theme: () => void }

export function listen(actions: KeyActions): () => void {
  let before = "";
  let beforeAt = 0;
  const pressed = (event: KeyboardEvent) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target instanceof HTMLElement ? event.target : document.body;
    if (event.key === "Escape") {
      if (actions.close() || !isField(target)) return;
      // A browser would empty the field, and tell nobody.
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
  document.addEventListener("keydown", pressed);
  return () => document.removeEventListener("keydown", pressed);
}

function act(key: string, target: HTMLElement, actions: KeyActions): boolean {
  switch (key) {
    case "/": return focused(document.querySelector<HTMLElement>("[data-search]"));
    case "j": return moved(target, 1);
    case "k": return moved(target, -1);
    case "ArrowDown": return target.closest("[data-item]") !== null && moved(target, 1);
    case "ArrowUp": return target.closest("[data-item]") !== null && moved(target, -1);
    case "Enter": return opened(target);
    case "x": return clicked(target.closest("[data-item]")?.querySelector("input[type=checkbox]"));
    case "[": return tabbed(-1);
    case "]": return tabbed(1);
    case "g r": return go(toRuns()), true;
    case "t": return actions.theme(), true;
    case "?": return actions.help(), true;
    default: return false;
  }
}

function moved(target: HTMLElement, by: 1 | -1): boolean {
  const items = [...document.querySelectorAll<HTMLElement>("[data-item]")];
  const here = items.indexOf(target.closest<HTMLElement>("[data-item]") ?? document.body);
  return focused(items[here < 0 ? (by > 0 ? 0 : items.length - 1) : Math.max(0, Math.min(items.length - 1, here + by))]);
}

function opened(target: HTMLElement): boolean {
  return target.matches("[data-item]") && clicked(target.querySelector("[data-open]") ?? target.querySelector("a"));
}

function tabbed(by: 1 | -1): boolean {
  const tabs = [...document.querySelectorAll<HTMLElement>("[role=tab]")];
  const here = tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
  return here >= 0 && clicked(tabs[(here + by + tabs.length) % tabs.length]);
}

function focused(element: HTMLElement | null | undefined): boolean {
  if (!element) return false;
  element.focus();
  element.scrollIntoView({ block: "nearest" });
  if (element instanceof HTMLInputElement) element.select();
  return true;
}

function clicked(element: Element | null | undefined): boolean {
  if (!(element instanceof HTMLElement)) return false;
  element.click();
  return true;
}

function isField(element: HTMLElement): boolean {
  return element.matches("input:not([type=checkbox]):not([type=range]):not([type=radio]), textarea, select, [contenteditable]");
}
