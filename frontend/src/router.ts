// Where one is, kept after the `#` of the address: a link that is sent to somebody shows the same.
//
//   #/?q=adam&state=failed                       the list of runs
//   #/run/ID/TAB?smooth=0.6&log=1                one run, or one search
//   #/compare?run=ID&run=ID&name=loss            runs over one another

import { useEffect, useState } from "preact/hooks";

export type Query = Readonly<Record<string, readonly string[]>>;
// What to change of a query: null takes a key away.
export type Patch = Readonly<Record<string, string | readonly string[] | null>>;

export type Route =
  | { readonly page: "runs"; readonly query: Query }
  | { readonly page: "run"; readonly id: string; readonly tab: string; readonly query: Query }
  | { readonly page: "compare"; readonly query: Query };

export function parsed(hash: string): Route {
  const text = hash.replace(/^#\/?/, "");
  const cut = text.indexOf("?");
  const query = cut < 0 ? {} : parsedQuery(text.slice(cut + 1));
  const [page, id, tab] = (cut < 0 ? text : text.slice(0, cut)).split("/").map(decoded);
  if (page === "run" && id !== undefined && id !== "") return { page, id, tab: tab ?? "", query };
  if (page === "compare") return { page, query };
  return { page: "runs", query };
}

export function formatted(route: Route): string {
  const path = route.page === "run" ? `run/${encodeURIComponent(route.id)}${route.tab === "" ? "" : `/${encodeURIComponent(route.tab)}`}`
    : route.page === "compare" ? "compare" : "";
  const query = formattedQuery(route.query);
  return `#/${path}${query === "" ? "" : `?${query}`}`;
}

// Addresses, for links.
export const toRuns = (query: Query = {}): string => formatted({ page: "runs", query });
export const toRun = (id: string, tab = "", query: Query = {}): string => formatted({ page: "run", id, tab, query });
export const toCompare = (ids: readonly string[]): string => formatted({ page: "compare", query: { run: ids } });

export function one(query: Query, key: string): string | null {
  return query[key]?.[0] ?? null;
}

export function many(query: Query, key: string): readonly string[] {
  return query[key] ?? [];
}

export function numberOf(query: Query, key: string): number | null {
  const text = one(query, key);
  const value = text === null || text.trim() === "" ? NaN : Number(text);
  return Number.isFinite(value) ? value : null;
}

export function patched(query: Query, patch: Patch): Query {
  const made: Record<string, readonly string[]> = { ...query };
  for (const [key, value] of Object.entries(patch)) {
    const list = value === null ? [] : typeof value === "string" ? [value] : value;
    if (list.length === 0 || (list.length === 1 && list[0] === "")) delete made[key];
    else made[key] = list;
  }
  return made;
}

// Go there. What only turns a knob replaces the address: the way back then leads out of the page, not through each turn.
export function go(hash: string, replace = false): void {
  if (hash === location.hash) return;
  if (replace) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute(): Route {
  const [route, setRoute] = useState<Route>(() => parsed(location.hash));
  useEffect(() => {
    const changed = () => setRoute(parsed(location.hash));
    window.addEventListener("hashchange", changed);
    window.addEventListener("popstate", changed);
    return () => {
      window.removeEventListener("hashchange", changed);
      window.removeEventListener("popstate", changed);
    };
  }, []);
  return route;
}

function parsedQuery(text: string): Query {
  const made: Record<string, string[]> = {};
  for (const [key, value] of new URLSearchParams(text)) (made[key] ??= []).push(value);
  return made;
}

function formattedQuery(query: Query): string {
  const made = new URLSearchParams();
  for (const [key, values] of Object.entries(query)) for (const value of values) made.append(key, value);
  return made.toString();
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
