// One item's way, from Node: enqueue, dequeue, ack, and two calls that must fail.
// Usage: node client.js GENERATED HOST PORT PROTOCOL; prints one line of JSON.
"use strict";

const thrift = require("thrift");
const path = require("path");

const [generated, host, port, protocolName] = process.argv.slice(2);
const Foqs = require(path.join(generated, "Foqs.js"));
const types = require(path.join(generated, "foqs_types.js"));

const protocol = protocolName === "compact" ? thrift.TCompactProtocol : thrift.TBinaryProtocol;
const connection = thrift.createConnection(host, Number(port), {
  transport: thrift.TFramedTransport,
  protocol: protocol,
});
connection.on("error", (error) => {
  console.error(error.message);
  process.exit(1);
});
const client = thrift.createClient(Foqs, connection);

const NAMESPACE = { namespace_name: "default" };
const TOPIC = "node/" + protocolName + "/é😀";

async function failure(promise) {
  try {
    await promise;
  } catch (failed) {
    return { code: failed.error.code, field: failed.error.field };
  }
  return null;
}

async function main() {
  const items = [5, -7].map(
    (priority) => new types.NewItem({ topic: TOPIC, priority, payload: Buffer.from([0, 255, priority & 255]) })
  );
  items.push(new types.NewItem({ topic: "" }));
  const enqueued = await client.enqueue(new types.EnqueueRequest({ ...NAMESPACE, items }));
  const dequeued = await client.dequeue(
    new types.DequeueRequest({
      ...NAMESPACE,
      topics: [new types.TopicCount({ topic: TOPIC, count: 10 })],
      wait_ms: 2000,
    })
  );
  const leases = dequeued.items.map((item) => new types.Lease({ id: item.id, token: item.token }));
  const acked = await client.ack(new types.AckRequest({ ...NAMESPACE, leases }));
  const again = await client.ack(new types.AckRequest({ ...NAMESPACE, leases }));
  const all = await Promise.all(
    Array.from({ length: 20 }, () => client.getRouting(new types.GetRoutingRequest()))
  );
  console.log(
    JSON.stringify({
      topic: TOPIC,
      ids: enqueued.results.map((result) => result.id),
      refused: enqueued.results.map((result) => result.error && { code: result.error.code, field: result.error.field }),
      delivered: dequeued.items.map((item) => ({
        id: item.id,
        topic: item.topic,
        priority: item.priority,
        payload: item.payload.toString("hex"),
        attempt: item.attempt,
      })),
      acked: acked.outcomes.map((outcome) => outcome.error === null && !outcome.already_gone),
      again: again.outcomes.map((outcome) => outcome.already_gone),
      routed: all.length,
      no_namespace: await failure(client.enqueue(new types.EnqueueRequest({ ...NAMESPACE, namespace_name: "absent", items }))),
      not_served: await failure(client.bindTopic(new types.BindTopicRequest({ ...NAMESPACE, topic: "t", regions: [] }))),
    })
  );
  connection.end();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
