// An HTTP server that returns each request's body and its checksum.
import { createHash } from "node:crypto";
import http from "node:http";

const server = http.createServer((request, response) => {
  const pieces = [];
  request.on("data", (piece) => pieces.push(piece));
  request.on("end", () => {
    const body = Buffer.concat(pieces);
    response.writeHead(200, {
      "content-length": body.length,
      "x-sha256": createHash("sha256").update(body).digest("hex"),
    });
    response.end(body);
  });
});
server.keepAliveTimeout = 60_000;
server.listen(Number(process.argv[2]), "127.0.0.1");
