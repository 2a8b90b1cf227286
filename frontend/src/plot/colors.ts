// Colours of lines, safe for colour-blind readers, in light and dark. css/0-base.css defines them; a canvas needs their
// current values.

export const NUM_COLORS = 10;

export function lineColor(index: number): string {
  return `var(--s${((index % NUM_COLORS) + NUM_COLORS) % NUM_COLORS})`;
}

let probe: HTMLElement | null = null;
const known = new Map<string, string>();

// The value of a colour for a canvas.
export function resolveColor(color: string): string {
  if (!color.startsWith("var(")) return color;
  const cached = known.get(color);
  if (cached !== undefined) return cached;
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

export function clearColors(): void {
  known.clear();
}
