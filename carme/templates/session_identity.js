// Loaded into the proxy with `node --require`: connections to sessions go to the address in the
// session's name, and only to a server with the certificate of that name. Without this file
// the names of sessions lead nowhere. CARME_SESSION_AUTHORITY names the file that the hub writes.
"use strict";
const fs = require("fs");
const https = require("https");

const NAME = /^([0-9a-f]+(?:-[0-9a-f]+)+)\.[0-9a-f]+\.carme-session\.internal$/;
const connect = https.Agent.prototype.createConnection;

function authority() {
  try {
    return fs.readFileSync(process.env.CARME_SESSION_AUTHORITY);
  } catch (error) {
    console.error("No session can be reached: CARME_SESSION_AUTHORITY: " + error.message);
    return [];
  }
}

https.Agent.prototype.createConnection = function (options, ...rest) {
  const match = NAME.exec(options.host || "");
  if (!match) return connect.call(this, options, ...rest);
  const parts = match[1].split("-");
  const session = {
    ...options,
    host: parts.join(parts.length === 4 ? "." : ":"),
    // By default Node.js expects the name that the browser asked for.
    servername: options.host,
    ca: authority(),
    rejectUnauthorized: true,
  };
  return connect.call(this, session, ...rest);
};
