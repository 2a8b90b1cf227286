// What is used of Preact, and no more.

declare module "preact" {
  export type ComponentChild = VNode | object | string | number | bigint | boolean | null | undefined;
  export type ComponentChildren = ComponentChild[] | ComponentChild;
  export interface VNode { readonly type: unknown; readonly props: object; readonly key: unknown }
  export type FunctionComponent<P = object> = (props: P & { children?: ComponentChildren; key?: string | number }) => VNode | null;
  export function h(type: unknown, props: object | null, ...children: ComponentChildren[]): VNode;
  export function Fragment(props: { children?: ComponentChildren }): VNode | null;
  export function render(node: ComponentChild, parent: Element): void;
}

declare module "preact/hooks" {
  export function useState<T>(initial: T | (() => T)): [T, (next: T | ((before: T) => T)) => void];
  export function useEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void;
  export function useLayoutEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void;
  export function useMemo<T>(make: () => T, inputs: readonly unknown[]): T;
  export function useCallback<T extends (...args: never[]) => unknown>(made: T, inputs: readonly unknown[]): T;
  export function useRef<T>(initial: T): { current: T };
  export function useRef<T>(initial: null): { current: T | null };
  export function useReducer<S, A>(reduce: (state: S, action: A) => S, initial: S): [S, (action: A) => void];
  export function useErrorBoundary(told?: (error: unknown) => void): [unknown, () => void];
}

declare namespace JSX {
  type Element = import("preact").VNode;
  interface ElementChildrenAttribute { children: unknown }
  interface IntrinsicAttributes { key?: string | number }
  // Markup cannot be given: what comes from a run is text wherever it is shown.
  interface Attributes {
    [name: string]: unknown;
    dangerouslySetInnerHTML?: never;
    children?: import("preact").ComponentChildren;
    ref?: { current: never } | ((element: never) => void) | { current: unknown };
    class?: string | undefined;
    id?: string | undefined;
    onClick?: (event: MouseEvent) => void;
    onInput?: (event: Event & { currentTarget: HTMLInputElement }) => void;
    onChange?: (event: Event & { currentTarget: HTMLInputElement & HTMLSelectElement }) => void;
    onKeyDown?: (event: KeyboardEvent) => void;
    onSubmit?: (event: Event) => void;
  }
  interface IntrinsicElements { [name: string]: Attributes }
}
