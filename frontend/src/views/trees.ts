// Configurations as trees: what of them fits a filter, and how their values are written.

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

// What has these words, all of them, in its path or its value; a branch stays with what stays of it.
export function filtered(all: readonly Node[], text: string): readonly Node[] {
  const words = text.toLowerCase().split(/\s+/).filter((word) => word !== "");
  return words.length === 0 ? all : kept(all, words);
}

function kept(all: readonly Node[], words: readonly string[]): readonly Node[] {
  return all.flatMap((node) => {
    const here = `${node.path} ${node.children === null ? written(node.value) : ""}`.toLowerCase();
    if (words.every((word) => here.includes(word))) return [node];
    const children = node.children === null ? [] : kept(node.children, words);
    return children.length > 0 ? [{ ...node, children }] : [];
  });
}

export function leaves(all: readonly Node[]): number {
  return all.reduce((sum, node) => sum + (node.children === null ? 1 : leaves(node.children)), 0);
}

// As one types it in Python, near enough to be told apart: texts have quotes where they would read as something else.
export function written(value: Leaf): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number") return String(value);
  return /^$|^\s|\s$|^(None|True|False|-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?)$/.test(value) ? JSON.stringify(value) : value;
}
