// What the unit tests use of Node.

declare module "node:test" {
  export function test(name: string, body: () => void | Promise<void>): void;
}

declare module "node:assert/strict" {
  export function equal(actual: unknown, expected: unknown, message?: string): void;
  export function deepEqual(actual: unknown, expected: unknown, message?: string): void;
  export function ok(value: unknown, message?: string): asserts value;
  export function throws(body: () => unknown, expected?: RegExp): void;
  export function rejects(body: Promise<unknown>, expected?: RegExp): Promise<void>;
}
