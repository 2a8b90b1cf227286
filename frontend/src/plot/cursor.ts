// Where the pointer is, told to all plots of a page that have the same x: their crosshairs go together.

type Told = (x: number | null, by: object) => void;

const groups = new Map<string, Set<Told>>();

export function joined(group: string, told: Told): () => void {
  const members = groups.get(group) ?? new Set<Told>();
  groups.set(group, members);
  members.add(told);
  return () => {
    members.delete(told);
    if (members.size === 0) groups.delete(group);
  };
}

export function pointed(group: string, x: number | null, by: object): void {
  for (const told of [...(groups.get(group) ?? [])]) told(x, by);
}
