
"use strict";
const { nodes } = JSON.parse(document.getElementById("data").textContent);
const graph = document.getElementById("graph");
const details = document.getElementById("details");
const matched = document.getElementById("matched");
const search = document.getElementById("search");
const ROW = 18;
let zoomed = 0;
function share(count) { return (100 * count / nodes[0][3]).toFixed(1) + " %"; }
function hue(name) {
  let sum = 0;
  for (let at = 0; at < name.length; at++) sum = (sum * 31 + name.charCodeAt(at)) | 0;
  return "hsl(" + (20 + Math.abs(sum) % 40) + " 85% " + (62 + Math.abs(sum >> 6) % 14) + "%)";
}
function showDetails(node) { details.textContent = node[0] + " - " + share(node[3]) + " (" + node[3] + " samples)"; }
function draw() {
  const [, top, left, width] = nodes[zoomed];
  const query = search.value.toLowerCase();
  const across = graph.clientWidth;
  let deepest = 0, found = 0, foundUntil = -1;
  const boxes = document.createDocumentFragment();
  nodes.forEach((node, at) => {
    const [name, depth, start, count] = node;
    const above = depth < top && start <= left && start + count >= left + width;
    const within = depth >= top && start >= left && start + count <= left + width;
    if (!above && !within) return;
    const x = above ? 0 : (start - left) / width * across;
    const wide = above ? across : count / width * across;
    const matches = query !== "" && name.toLowerCase().includes(query);
    if (matches && within && start >= foundUntil) { found += count; foundUntil = start + count; }
    if (wide < 0.5) return;
    deepest = Math.max(deepest, depth);
    const box = document.createElement("button");
    box.type = "button";
    box.style.left = x + "px";
    box.style.top = depth * ROW + "px";
    box.style.width = Math.max(0.5, wide - 1) + "px";
    box.style.background = hue(name);
    if (wide > 20) box.textContent = name; else box.tabIndex = -1;
    box.setAttribute("aria-label", name + ", " + share(count));
    box.title = name + "\n" + share(count) + ", " + count + " samples";
    box.classList.toggle("above", above);
    box.classList.toggle("found", matches);
    box.addEventListener("click", () => { zoomed = at; draw(); showDetails(node); });
    box.addEventListener("mouseenter", () => showDetails(node));
    box.addEventListener("focus", () => showDetails(node));
    boxes.append(box);
  });
  graph.replaceChildren(boxes);
  graph.style.height = (deepest + 1) * ROW + "px";
  matched.textContent = query === "" ? "" : "found in " + share(found) + " of the samples";
}
search.addEventListener("input", draw);
function reset() { zoomed = 0; search.value = ""; details.textContent = ""; draw(); }
document.getElementById("reset").addEventListener("click", reset);
addEventListener("resize", draw);
addEventListener("keydown", (event) => {
  if (event.key === "Escape") reset();
  else if (event.key === "/" && document.activeElement !== search) { event.preventDefault(); search.focus(); }
});
if (nodes[0][3] === 0) details.textContent = "no samples"; else draw();
