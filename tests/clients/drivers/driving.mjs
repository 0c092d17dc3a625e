// The loop of a Node.js driver: a command per line on stdin, its result per line on stdout.
import { createInterface } from 'node:readline';

// Some clients log to stdout: what they log goes to stderr.
console.log = console.error;

export async function drive(Driver) {
  const driver = new Driver(process.argv[2]);
  const answer = (line) => process.stdout.write(JSON.stringify(line) + '\n');
  answer({ ready: true });
  for await (const line of createInterface({ input: process.stdin })) {
    const { do: name, ...given } = JSON.parse(line);
    try {
      answer({ result: await driver[name](given) });
    } catch (error) {
      answer({ error: String(error?.stack ?? error) });
    }
  }
}

export const encoded = (text) => Buffer.from(text).toString('base64');
export const decoded = (base64) => Buffer.from(base64, 'base64').toString();
