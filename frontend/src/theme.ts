// Light or dark: as the system has it, until a person says otherwise, which is remembered.

export type Theme = "system" | "light" | "dark";

const KEY = "paceline-theme";
const NEXT: Readonly<Record<Theme, Theme>> = { system: "light", light: "dark", dark: "system" };
const told = new Set<() => void>();

export function remembered(): Theme {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system"; // Pages from a file may have no storage.
  }
}

export function next(theme: Theme): Theme {
  return NEXT[theme];
}

export function put(theme: Theme): void {
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // It holds until the page is closed.
  }
  shown(theme);
}

export function shown(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
  for (const each of [...told]) each();
}

// Called when colours are others than before, which what is drawn on a canvas has to be told.
export function onTheme(changed: () => void): () => void {
  told.add(changed);
  return () => void told.delete(changed);
}

export function watchSystem(): void {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const each of [...told]) each();
  });
}
