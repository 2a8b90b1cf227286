// Colours of lines: told apart also by eyes that see few colours, in light and in dark. The values stand in
// css/0-base.css; a canvas has to be told what they are now.

export const NUM_COLORS = 10;

export function lineColor(index: number): string {
  return `var(--s${((index % NUM_COLORS) + NUM_COLORS) % NUM_COLORS})`;
}

let probe: HTMLElement | null = null;
const known = new Map<string, string>();

// A colour as a canvas takes it.
export function resolved(color: string): string {
  if (!color.startsWith("var(")) return color;
  const held = known.get(color);
  if (held !== undefined) return held;
  if (probe === null) {
    probe = document.createElement("span");
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = color;
  const value = getComputedStyle(probe).color;
  known.set(color, value);
  return value;
}

export function forget(): void {
  known.clear();
}
