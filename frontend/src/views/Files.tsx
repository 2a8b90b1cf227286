// Requested profiles and stacks.

import type { ShownFile } from "../api";
import { useNow } from "../parts";
import type { Source } from "../source";
import type { ViewProps } from "../tabs";
import { ago, duration, size, when } from "../words";
import { Nothing, Part } from "./pieces";

const WORDS: Readonly<Record<string, readonly [string, string]>> = {
  flame: ["Flame graph", "opens as a page"],
  trace: ["Torch trace", "for ui.perfetto.dev or chrome://tracing"],
  "stacks-folded": ["Folded stacks", "for tools that draw flame graphs"],
  stacks: ["Stacks", "what every thread did at that moment"],
};

export function Files({ detail, source, control }: ViewProps) {
  const now = useNow(10);
  const files = [...detail.files].sort((a, b) => b.at - a.at || a.rank - b.rank);
  if (files.length === 0) {
    return <Nothing>No profiles. {control ? "Profile, above, makes one" : "paceline profile RUN makes one"} while the run is running.</Nothing>;
  }
  return (
    <div class="view files">
      <Part title="Profiles and stacks">
        <div class="table-frame" tabindex={0} role="region" aria-label="Table of profiles and stacks">
          <table class="table">
            <thead><tr><th scope="col">File</th><th scope="col" class="num">Rank</th><th scope="col" class="num">Over</th><th scope="col" class="num">Size</th><th scope="col">Made</th><th scope="col">Path</th></tr></thead>
            <tbody>{files.map((file) => (
              <tr key={file.path} data-kind={file.kind}>
                <th scope="row">{fileLink(source, detail.summary.id, file)} <span class="dim">{WORDS[file.kind]?.[1] ?? ""}</span></th>
                <td class="num">{file.rank < 0 ? "all" : file.rank}</td><td class="num nowrap">{file.seconds > 0 ? duration(file.seconds) : "–"}</td><td class="num nowrap">{size(file.num_bytes)}</td>
                <td class="nowrap" title={when(file.at)}>{source.fixed ? when(file.at) : ago(file.at, now)}</td><td class="mono path-cell"><span class="path" title={file.path}><bdi>{file.path}</bdi></span></td>
              </tr>
            ))}</tbody>
          </table>
        </div>
      </Part>
    </div>
  );
}

export function fileLink(source: Source, id: string, file: ShownFile) {
  const url = source.fileUrl(id, file.path);
  const name = `${WORDS[file.kind]?.[0] ?? file.kind} of ${file.rank < 0 ? "all ranks" : `rank ${file.rank}`}`;
  if (url === null) return <span>{name}</span>;
  return file.kind === "flame" || file.kind === "stacks" ? <a href={url} target="_blank" rel="noopener">{name}</a> : <a href={url} download>{name}</a>;
}
