// Configuration, environment and code of a run: foldable trees with one filter.

import { useMemo, useState } from "preact/hooks";
import type { Tree } from "../api";
import type { ViewProps } from "../tabs";
import { plural } from "../words";
import { Copy, Fold, Nothing, Part } from "./pieces";
import { filterTree, leaves, nodes, formatValue, type Node } from "./trees";

const OPEN = 40;

export function Configuration({ detail, query, set }: ViewProps) {
  const filter = query["filter"]?.[0] ?? "";
  const { sources, ...code } = detail.code as { sources?: Readonly<Record<string, string>> };
  const sections: readonly [string, Tree][] = [
    ["Configuration", detail.config], ["Scaling", detail.scaling], ["Run", detail.run_config], ["Environment", detail.environment], ["Code", code],
  ];
  const shown = sections.map(([title, tree]) => <Section key={title} title={title} tree={tree} filter={filter} />);
  const files = Object.entries(sources ?? {}).filter(([name, text]) => filter === "" || `${name}\n${text}`.toLowerCase().includes(filter.toLowerCase()));
  return (
    <div class="view configuration">
      <div class="tools"><input type="search" data-search placeholder="Filter keys and values" aria-label="Filter keys and values" value={filter} onInput={(event) => set({ filter: event.currentTarget.value === "" ? null : event.currentTarget.value })} /></div>
      <div class="sections">{shown}</div>
      {files.length === 0 ? null : (
        <Part title="Sources" aside={<span class="dim">as they were when the run began</span>}>
          {files.map(([name, text]) => <Fold key={name} kind="source" title={<span class="mono">{name} <span class="dim">{plural(linesOf(text).length, "line")}</span></span>}>{() => <Source name={name} text={text} />}</Fold>)}
        </Part>
      )}
    </div>
  );
}

function Section({ title, tree, filter }: { title: string; tree: Tree; filter: string }) {
  const all = useMemo(() => nodes(tree), [tree]);
  const some = useMemo(() => filterTree(all, filter), [all, filter]);
  if (filter !== "" && some.length === 0) return null;
  const many = leaves(some);
  return (
    <Part title={title} aside={all.length === 0 ? undefined : <div class="tools"><span class="dim">{plural(many, "value")}</span><Copy text={() => JSON.stringify(tree, null, 2)} label="copy JSON" what={`${title} as JSON`} /></div>}>
      {all.length === 0 ? <Nothing>No information.</Nothing> : <Branch nodes={some} open={filter !== "" || many <= OPEN} />}
    </Part>
  );
}

export function Branch({ nodes: all, open }: { nodes: readonly Node[]; open: boolean }) {
  return (
    <ul class="tree">{all.map((node) => {
      const children = node.children;
      return (
        <li key={node.key}>{children === null
          ? <div class="leaf"><span class="leaf-key">{node.key}</span><span class={`leaf-value is-${node.value === null ? "none" : typeof node.value}`}>{formatValue(node.value)}</span></div>
          : <Fold open={open} title={<span><span class="leaf-key">{node.key}</span> <span class="dim">{leaves(children)}</span></span>}>{() => <Branch nodes={children} open={open} />}</Fold>}
        </li>
      );
    })}</ul>
  );
}

function linesOf(text: string): readonly string[] {
  const lines = text.split("\n");
  return lines[lines.length - 1] === "" ? lines.slice(0, -1) : lines;
}

function Source({ name, text }: { name: string; text: string }) {
  const [all, setAll] = useState(false);
  const lines = linesOf(text);
  const some = all ? lines : lines.slice(0, 2000);
  return (
    <div class="text-frame">
      <Copy text={text} what={`the source of ${name}`} />
      <div class="numbered" tabindex={0} role="region" aria-label={`Source of ${name}`}>
        <pre class="numbers" aria-hidden="true">{some.map((_, index) => index + 1).join("\n")}</pre><pre class="numbered-text">{some.join("\n")}</pre>
      </div>
      {some.length < lines.length ? <button type="button" class="small-button" onClick={() => setAll(true)}>all {lines.length} lines</button> : null}
    </div>
  );
}
