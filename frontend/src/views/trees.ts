// Configurations as trees: filtering them and formatting their values.

export type Leaf = string | number | boolean | null;
export interface Node { readonly key: string; readonly path: string; readonly value: Leaf; readonly children: readonly Node[] | null }

const DEEPEST = 40;

export function nodes(value: unknown, prefix = "", depth = 0): readonly Node[] {
  const entries: readonly (readonly [string, unknown])[] = Array.isArray(value)
    ? value.map((each, index) => [String(index), each] as const)
    : Object.entries((value ?? {}) as object);
  return entries.map(([key, each]) => {
    const path = prefix === "" ? key : `${prefix}/${key}`;
    if (isBranch(each) && depth < DEEPEST) return { key, path, value: null, children: nodes(each, path, depth + 1) };
    return { key, path, value: leaf(each), children: null };
  });
}

function isBranch(value: unknown): boolean {
  if (Array.isArray(value)) return value.some((each) => typeof each === "object" && each !== null);
  return typeof value === "object" && value !== null && Object.keys(value).length > 0;
}

function leaf(value: unknown): Leaf {
  if (value === null || typeof value === "number" || typeof value === "boolean" || typeof value === "string") return value;
  return value === undefined ? null : JSON.stringify(value);
}

// Keeps nodes whose path or value contains all words, and the branches that lead to them.
export function filterTree(all: readonly Node[], text: string): readonly Node[] {
  const words = text.toLowerCase().split(/\s+/).filter((word) => word !== "");
  return words.length === 0 ? all : filterNodes(all, words);
}

function filterNodes(all: readonly Node[], words: readonly string[]): readonly Node[] {
  return all.flatMap((node) => {
    const here = `${node.path} ${node.children === null ? formatValue(node.value) : ""}`.toLowerCase();
    if (words.every((word) => here.includes(word))) return [node];
    const children = node.children === null ? [] : filterNodes(node.children, words);
    return children.length > 0 ? [{ ...node, children }] : [];
  });
}

export function leaves(all: readonly Node[]): number {
  return all.reduce((sum, node) => sum + (node.children === null ? 1 : leaves(node.children)), 0);
}

// As in Python: strings are quoted if they would read as another type.
export function formatValue(value: Leaf): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number") return String(value);
  return /^$|^\s|\s$|^(None|True|False|-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?)$/.test(value) ? JSON.stringify(value) : value;
}
