// The route, kept after the `#` of the URL, so that a link shows the same view.
//
//   #/?q=adam&state=failed                       the list of runs
//   #/run/ID/TAB?smooth=0.6&log=1                one run, or one search
//   #/compare?run=ID&run=ID&name=loss            runs over one another

import { useEffect, useState } from "preact/hooks";

export type Query = Readonly<Record<string, readonly string[]>>;
// Changes of a query: null removes a key.
export type Patch = Readonly<Record<string, string | readonly string[] | null>>;

export type Route =
  | { readonly page: "runs"; readonly query: Query }
  | { readonly page: "run"; readonly id: string; readonly tab: string; readonly query: Query }
  | { readonly page: "compare"; readonly query: Query };

export function parseRoute(hash: string): Route {
  const text = hash.replace(/^#\/?/, "");
  const cut = text.indexOf("?");
  const query = cut < 0 ? {} : parseQuery(text.slice(cut + 1));
  const [page, id, tab] = (cut < 0 ? text : text.slice(0, cut)).split("/").map(decode);
  if (page === "run" && id !== undefined && id !== "") return { page, id, tab: tab ?? "", query };
  if (page === "compare") return { page, query };
  return { page: "runs", query };
}

export function formatRoute(route: Route): string {
  const path = route.page === "run" ? `run/${encodeURIComponent(route.id)}${route.tab === "" ? "" : `/${encodeURIComponent(route.tab)}`}`
    : route.page === "compare" ? "compare" : "";
  const query = formatQuery(route.query);
  return `#/${path}${query === "" ? "" : `?${query}`}`;
}

// URLs for links.
export const toRuns = (query: Query = {}): string => formatRoute({ page: "runs", query });
export const toRun = (id: string, tab = "", query: Query = {}): string => formatRoute({ page: "run", id, tab, query });
export const toCompare = (ids: readonly string[]): string => formatRoute({ page: "compare", query: { run: ids } });

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

export function patchQuery(query: Query, patch: Patch): Query {
  const result: Record<string, readonly string[]> = { ...query };
  for (const [key, value] of Object.entries(patch)) {
    const list = value === null ? [] : typeof value === "string" ? [value] : value;
    if (list.length === 0 || (list.length === 1 && list[0] === "")) delete result[key];
    else result[key] = list;
  }
  return result;
}

// Navigates. With `replace`, the browser history gets no new entry.
export function go(hash: string, replace = false): void {
  if (hash === location.hash) return;
  if (replace) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute(): Route {
  const [route, setRoute] = useState<Route>(() => parseRoute(location.hash));
  useEffect(() => {
    const changed = () => setRoute(parseRoute(location.hash));
    window.addEventListener("hashchange", changed);
    window.addEventListener("popstate", changed);
    return () => {
      window.removeEventListener("hashchange", changed);
      window.removeEventListener("popstate", changed);
    };
  }, []);
  return route;
}

function parseQuery(text: string): Query {
  const result: Record<string, string[]> = {};
  for (const [key, value] of new URLSearchParams(text)) (result[key] ??= []).push(value);
  return result;
}

function formatQuery(query: Query): string {
  const result = new URLSearchParams();
  for (const [key, values] of Object.entries(query)) for (const value of values) result.append(key, value);
  return result.toString();
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
