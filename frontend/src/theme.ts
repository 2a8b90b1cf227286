// Light or dark theme: follows the system until the user chooses, and remembers the choice.

export type Theme = "system" | "light" | "dark";

const KEY = "paceline-theme";
const NEXT: Readonly<Record<Theme, Theme>> = { system: "light", light: "dark", dark: "system" };
const listeners = new Set<() => void>();

export function loadTheme(): Theme {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system"; // Pages from a file may have no storage.
  }
}

export function nextTheme(theme: Theme): Theme {
  return NEXT[theme];
}

export function saveTheme(theme: Theme): void {
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // The choice then lasts until the page is closed.
  }
  applyTheme(theme);
}

export function applyTheme(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
  for (const each of [...listeners]) each();
}

// Calls the listener when the colours change, so that a canvas can be redrawn.
export function onTheme(changed: () => void): () => void {
  listeners.add(changed);
  return () => void listeners.delete(changed);
}

export function watchSystem(): void {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const each of [...listeners]) each();
  });
}
