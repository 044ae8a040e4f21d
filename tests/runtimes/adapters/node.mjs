// node node.mjs NODE_MODULES MODEL: one line of JSON in, one out, {dtype, shape, data} -> {data, seconds} or {error}
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const ort = createRequire(process.argv[2] + "/x.js")("onnxruntime-node");
const arrays = { float32: Float32Array, float64: Float64Array };
const session = ort.InferenceSession.create(process.argv[3], { intraOpNumThreads: 1, interOpNumThreads: 1 });

for await (const line of createInterface({ input: process.stdin })) {
  try {
    const { dtype, shape, data } = JSON.parse(line);
    const bytes = Uint8Array.from(Buffer.from(data, "base64"));
    const x = new ort.Tensor(dtype, new arrays[dtype](bytes.buffer), shape);
    const model = await session;
    const start = performance.now();
    const { y } = await model.run({ x });
    const seconds = (performance.now() - start) / 1000;
    const out = Buffer.from(y.data.buffer, y.data.byteOffset, y.data.byteLength).toString("base64");
    console.log(JSON.stringify({ data: out, seconds }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
