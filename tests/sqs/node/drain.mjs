// Drains a queue with sqs-consumer: node drain.mjs ENDPOINT QUEUE_URL COUNT. Prints the bodies as one JSON array.
// The SDK checks the MD5 of each body. Each message has an attribute `body` that must equal its body.
import { SQSClient } from "@aws-sdk/client-sqs";
import { Consumer } from "sqs-consumer";

const [endpoint, queueUrl, count] = process.argv.slice(2);
const sqs = new SQSClient({
  endpoint,
  region: "eu-west-1",
  credentials: { accessKeyId: "key", secretAccessKey: "secret" },
});
const bodies = [];
const consumer = Consumer.create({
  sqs,
  queueUrl,
  batchSize: 10,
  waitTimeSeconds: 5,
  messageAttributeNames: ["All"],
  attributeNames: ["ApproximateReceiveCount"],
  handleMessage: async (message) => {
    if (message.MessageAttributes.body.StringValue !== message.Body) {
      throw new Error(`another attribute: ${message.Body}`);
    }
    bodies.push(message.Body);
    if (bodies.length === Number(count)) {
      consumer.stop();
    }
    return message;
  },
});
const fail = (error) => {
  console.error(error);
  process.exit(1);
};
consumer.on("error", fail);
consumer.on("processing_error", fail);
consumer.on("stopped", () => console.log(JSON.stringify(bodies)));
consumer.start();
