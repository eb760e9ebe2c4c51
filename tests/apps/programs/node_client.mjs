// Posts bodies of all sizes over kept-alive connections, verifies each answer, reports, waits to be dismissed.
import { createHash, randomBytes } from "node:crypto";
import http from "node:http";

const port = Number(process.argv[2]);
const connections = Number(process.argv[3]);
const requests = 800;
const largeBytes = 4 << 20;

const agent = new http.Agent({ keepAlive: true, maxSockets: connections });
const sockets = new Set();
let done = 0;
let payloadBytes = 0;
const began = performance.now();

function post(body) {
  return new Promise((resolve, reject) => {
    const request = http.request({ port, host: "127.0.0.1", method: "POST", agent }, (response) => {
      const pieces = [];
      response.on("data", (piece) => pieces.push(piece));
      response.on("error", reject);
      response.on("end", () => {
        const answer = Buffer.concat(pieces);
        const digest = createHash("sha256").update(body).digest("hex");
        if (response.statusCode !== 200) reject(new Error(`status ${response.statusCode}`));
        else if (response.headers["x-sha256"] !== digest) reject(new Error("the server got another body"));
        else if (!answer.equals(body)) reject(new Error("the answer differs from the body"));
        else resolve();
      });
    });
    request.on("socket", (socket) => sockets.add(socket));
    request.on("error", reject);
    request.end(body);
  });
}

async function worker(number) {
  for (let n = number; n < requests; n += connections) {
    const body = randomBytes(n < connections ? largeBytes : 1 + ((n * 7919) % 65536));
    await post(body);
    done += 1;
    payloadBytes += 2 * body.length;
  }
}

await Promise.all(Array.from({ length: connections }, (_, number) => worker(number)));
if (sockets.size > connections) throw new Error(`${sockets.size} connections instead of ${connections}`);
const seconds = (performance.now() - began) / 1000;
console.log("done " + JSON.stringify({ requests: done, payload_bytes: payloadBytes, seconds }));
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
